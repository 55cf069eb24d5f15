//! What steps take: measured averages by size, and what lies between them.

use std::collections::HashMap;

/// The least weight of a new measurement among old ones.
const FORGET: f64 = 0.05;
/// A step without drafts is measured so often at first, and again once it was not for so many steps.
const PLAIN_AT_FIRST: f64 = 3.0;
const PLAIN_EVERY: u64 = 256;

/// Seconds as they depend on rows and context: measured averages in cells that double in size, and a straight line over
/// rows through them where nothing was measured.
#[derive(Debug, Default)]
pub(crate) struct Table {
    cells: HashMap<(usize, u32), Cell>,
}

#[derive(Debug, Clone, Copy)]
struct Cell {
    seconds: f64,
    weight: f64,
    /// Step of the last measurement.
    at: u64,
}

/// Rows up to this have a cell each; beyond, sixteen cells per doubling.
const FINE_ROWS: usize = 32;

fn rows_cell(rows: usize) -> usize {
    if rows <= FINE_ROWS {
        return rows;
    }
    let step = (rows.next_power_of_two() / FINE_ROWS).max(1);
    rows / step * step
}

impl Table {
    pub(crate) fn note(&mut self, (rows, context): (usize, usize), seconds: f64, clock: u64) {
        let place = (rows_cell(rows), context_cell(context));
        let cell = self.cells.entry(place).or_insert(Cell { seconds, weight: 0.0, at: clock });
        cell.at = clock;
        cell.weight = (cell.weight + 1.0).min(1.0 / FORGET);
        // A step that was disturbed is not to move the picture much.
        let bounded = if cell.weight > 3.0 { seconds.min(4.0 * cell.seconds) } else { seconds };
        cell.seconds += (bounded - cell.seconds) / cell.weight;
    }

    /// What steps of this size take, where that was measured a few times.
    pub(crate) fn usual(&self, (rows, context): (usize, usize)) -> Option<f64> {
        let cell = self.cells.get(&(rows_cell(rows), context_cell(context)))?;
        (cell.weight >= PLAIN_AT_FIRST).then_some(cell.seconds)
    }

    /// Whether steps of this size were measured often enough, and lately.
    pub(crate) fn knows(&self, (rows, context): (usize, usize), clock: u64) -> bool {
        let cell = self.cells.get(&(rows_cell(rows), context_cell(context)));
        cell.is_some_and(|cell| cell.weight >= PLAIN_AT_FIRST && clock < cell.at + PLAIN_EVERY)
    }

    /// Whether steps of more than one number of rows were seen.
    pub(crate) fn knows_slope(&self) -> bool {
        let mut rows = self.cells.keys().map(|(rows, _)| rows);
        rows.next().is_some_and(|first| rows.any(|other| other != first))
    }

    /// `None` before anything was measured.
    pub(crate) fn seconds(&self, rows: usize, context: usize) -> Option<f64> {
        let wanted = (rows_cell(rows), context_cell(context));
        if let Some(cell) = self.cells.get(&wanted) {
            return Some(cell.seconds);
        }
        // The nearest context that knows anything; then the line through its neighbours.
        let nearest = self.cells.keys().map(|(_, c)| *c).min_by_key(|c| c.abs_diff(wanted.1))?;
        let mut points: Vec<(f64, f64)> = self
            .cells
            .iter()
            .filter(|((_, c), _)| *c == nearest)
            .map(|((r, _), cell)| (*r as f64, cell.seconds))
            .collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        Some(along(&points, rows as f64))
    }
}

/// Four cells per doubling are not needed for what changes slowly: one is.
fn context_cell(context: usize) -> u32 {
    context.max(256).ilog2()
}

/// The line through the two points next to `x`; a single point stands for a cost that does not depend on `x`.
fn along(points: &[(f64, f64)], x: f64) -> f64 {
    let Some(first) = points.first() else { return 0.0 };
    if points.len() == 1 {
        return first.1;
    }
    let right = points.partition_point(|(at, _)| *at < x).clamp(1, points.len() - 1);
    let ((x0, y0), (x1, y1)) = (points[right - 1], points[right]);
    let slope = ((y1 - y0) / (x1 - x0)).max(0.0);
    let least = points.iter().map(|(_, y)| *y).fold(f64::INFINITY, f64::min);
    (y0 + slope * (x - x0)).max(0.5 * least)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_measured_lies_on_a_line() {
        let mut table = Table::default();
        assert_eq!(table.seconds(4, 0), None);
        table.note((2, 0), 2.0, 0);
        assert_eq!(table.seconds(9, 0), Some(2.0), "one point knows no slope");
        table.note((4, 0), 3.0, 0);
        assert_eq!(table.seconds(3, 0), Some(2.5));
        assert_eq!(table.seconds(8, 0), Some(5.0));
        assert_eq!(table.seconds(8, 1 << 20), Some(5.0), "another context borrows from the nearest");
    }
}
