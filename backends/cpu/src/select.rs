//! The largest values of a row without sorting all of it.

use std::cmp::Ordering;

/// Up to this many values are kept sorted while the row is read once.
const SMALL: usize = 64;

/// Order of two ids by falling value, then by rising id. NaN comes last.
pub(crate) fn falling(values: &[f32], a: u32, b: u32) -> Ordering {
    let value = |id: u32| {
        let v = values[id as usize];
        if v.is_nan() { f32::NEG_INFINITY } else { v }
    };
    value(b).partial_cmp(&value(a)).unwrap_or(Ordering::Equal).then(a.cmp(&b))
}

/// Ids of the `k` largest values (all where there are fewer), falling, the lower id first among equals.
pub(crate) fn largest(values: &[f32], k: usize) -> Vec<u32> {
    let k = k.min(values.len());
    if k <= SMALL {
        return largest_few(values, k);
    }
    let mut ids: Vec<u32> = (0..values.len() as u32).collect();
    if k < ids.len() {
        ids.select_nth_unstable_by(k, |a, b| falling(values, *a, *b));
        ids.truncate(k);
    }
    ids.sort_unstable_by(|a, b| falling(values, *a, *b));
    ids
}

fn largest_few(values: &[f32], k: usize) -> Vec<u32> {
    let mut best: Vec<u32> = Vec::with_capacity(k + 1);
    if k == 0 {
        return best;
    }
    let mut least = f32::NEG_INFINITY;
    for (id, value) in values.iter().enumerate() {
        // An equal value with a higher id loses.
        let enters = best.len() < k || *value > least;
        if enters {
            let id = id as u32;
            let place = best.partition_point(|other| falling(values, *other, id).is_lt());
            best.insert(place, id);
            best.truncate(k);
            least = values[best[best.len() - 1] as usize];
            if least.is_nan() {
                least = f32::NEG_INFINITY;
            }
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn equals_a_full_sort(values in proptest::collection::vec(-4_i8..4, 0..200), k in 0_usize..220) {
            let values: Vec<f32> = values.iter().map(|v| if *v == -4 { f32::NAN } else { f32::from(*v) }).collect();
            let mut all: Vec<u32> = (0..values.len() as u32).collect();
            let key = |id: u32| if values[id as usize].is_nan() { f32::NEG_INFINITY } else { values[id as usize] };
            all.sort_by(|a, b| key(*b).total_cmp(&key(*a)).then(a.cmp(b)));
            all.truncate(k);
            prop_assert_eq!(largest(&values, k), all);
        }
    }
}
