//! Records in a directory: what was written comes back, and nothing else does.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // all of it is test code

use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;

use perilune_cache::{CacheKey, Record, RecordId, RecordKind, WriteFault};
use perilune_disk::{DiskError, DiskEvent, DiskJob, DiskStore, DiskThread, Identity};
use perilune_tensor::TokenId;

const ME: Identity = Identity([7; 32]);

fn record(id: u64, kind: RecordKind, parent: u64) -> Record {
    let count = [(RecordKind::Block, 4), (RecordKind::Tail, 2), (RecordKind::State, 0)];
    let count = count.into_iter().find(|(k, _)| *k == kind).unwrap().1;
    let key = CacheKey { salt: Some("tenant".into()), ..CacheKey::default() };
    let tokens = (0..count).map(|i| TokenId(id as u32 * 100 + i)).collect();
    Record { id: RecordId(id), kind, parent: (parent > 0).then_some(RecordId(parent)), key, tokens, starts: 3 }
}

/// Two blocks, a tail and a state, one after the other.
fn chain() -> Vec<(Record, Vec<u8>)> {
    let kinds = [RecordKind::Block, RecordKind::Block, RecordKind::Tail, RecordKind::State];
    let unit = |id: u64| (0..50 * id as usize).map(|i| (i * 31 + id as usize) as u8).collect();
    (1..).zip(kinds).map(|(id, kind)| (record(id, kind, id - 1), unit(id))).collect()
}

fn written(dir: &Path) -> Vec<(Record, Vec<u8>)> {
    let (mut store, found) = DiskStore::open(dir, ME).unwrap();
    assert!(found.records.is_empty());
    for (record, unit) in chain() {
        store.write(&record, &unit).unwrap();
    }
    chain()
}

fn file(dir: &Path, id: u64) -> PathBuf {
    dir.join(format!("{id:016x}.record"))
}

#[test]
fn what_was_written_is_there_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let all = written(dir.path());
    std::fs::write(dir.path().join("notes.txt"), "not ours").unwrap();
    std::fs::write(dir.path().join("0000000000000009.partial"), "half").unwrap();
    let (mut store, found) = DiskStore::open(dir.path(), ME).unwrap();
    let records: Vec<&Record> = all.iter().map(|(record, _)| record).collect();
    assert_eq!(found.records.iter().collect::<Vec<_>>(), records);
    assert_eq!(found.removed, 1);
    for (record, unit) in &all {
        assert_eq!(&store.read(record.id).unwrap(), unit);
    }
    assert!(dir.path().join("notes.txt").exists() && !dir.path().join("0000000000000009.partial").exists());
    store.remove(RecordId(4));
    assert!(store.read(RecordId(4)).is_err());
}

#[test]
fn two_processes_do_not_share_a_directory() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = DiskStore::open(dir.path(), ME).unwrap();
    assert!(matches!(DiskStore::open(dir.path(), ME), Err(DiskError::InUse { .. })));
    drop(store);
    assert!(DiskStore::open(dir.path(), ME).is_ok());
}

#[test]
fn a_place_that_cannot_be_written_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    std::fs::write(&path, "").unwrap();
    let error = DiskStore::open(&path, ME).unwrap_err();
    assert!(matches!(error, DiskError::Io { .. }) && error.to_string().contains("file"), "{error}");
}

/// Each spoils one file and returns which record is lost at the latest when it is read; those behind it go with it.
#[test]
fn whatever_happens_to_a_file_it_is_a_miss_and_it_is_gone() {
    type Spoil = fn(&Path);
    let cases: [(&str, Spoil); 9] = [
        ("emptied", |f| std::fs::write(f, "").unwrap()),
        ("garbage", |f| std::fs::write(f, vec![0xAB; 5000]).unwrap()),
        ("torn", |f| {
            let bytes = std::fs::read(f).unwrap();
            std::fs::write(f, &bytes[..bytes.len() - 1]).unwrap();
        }),
        ("torn in its head", |f| {
            let bytes = std::fs::read(f).unwrap();
            std::fs::write(f, &bytes[..100]).unwrap();
        }),
        ("grown", |f| {
            let bytes = [std::fs::read(f).unwrap(), vec![0]].concat();
            std::fs::write(f, bytes).unwrap();
        }),
        ("a bit of its unit", |f| {
            let mut bytes = std::fs::read(f).unwrap();
            *bytes.last_mut().unwrap() ^= 1;
            std::fs::write(f, bytes).unwrap();
        }),
        ("a bit of its head", |f| {
            let mut bytes = std::fs::read(f).unwrap();
            bytes[60] ^= 16;
            std::fs::write(f, bytes).unwrap();
        }),
        ("another record's contents", |f| {
            std::fs::copy(f.with_file_name("0000000000000001.record"), f).unwrap();
        }),
        ("a directory", |f| {
            std::fs::remove_file(f).unwrap();
            std::fs::create_dir(f).unwrap();
        }),
    ];
    for (what, spoil) in cases {
        for when in ["before the start", "while running"] {
            let dir = tempfile::tempdir().unwrap();
            let all = written(dir.path());
            let path = file(dir.path(), 2);
            let early = when == "before the start";
            if early {
                spoil(&path);
            }
            let (mut store, found) = DiskStore::open(dir.path(), ME).unwrap();
            if !early {
                spoil(&path);
            }
            let known = found.records.iter().any(|record| record.id == RecordId(2));
            if early && what != "a bit of its unit" {
                assert!(!known && found.records.len() == 1, "{what}: {:?}", found.records);
            }
            let read = store.read(RecordId(2));
            assert!(read.is_err(), "{what}, {when}");
            assert!(!path.is_file(), "{what}, {when}: it is still there");
            assert_eq!(store.read(RecordId(1)).unwrap(), all[0].1, "{what}: the others are whole");
        }
    }
}

#[test]
fn every_flipped_bit_of_a_file_is_a_miss() {
    let dir = tempfile::tempdir().unwrap();
    let all = written(dir.path());
    let path = file(dir.path(), 1);
    let bytes = std::fs::read(&path).unwrap();
    let (mut store, _) = DiskStore::open(dir.path(), ME).unwrap();
    for bit in 0..8 * bytes.len() {
        let mut changed = bytes.clone();
        changed[bit / 8] ^= 1 << (bit % 8);
        std::fs::write(&path, changed).unwrap();
        assert!(store.read(RecordId(1)).is_err(), "bit {bit}");
        store.write(&all[0].0, &all[0].1).unwrap();
    }
}

#[test]
fn records_of_another_model_are_removed_and_numbers_do_not_mislead() {
    let dir = tempfile::tempdir().unwrap();
    written(dir.path());
    let (mut store, found) = DiskStore::open(dir.path(), Identity([8; 32])).unwrap();
    assert_eq!((found.records.len(), found.removed), (0, 4));
    // The number of a parent that is gone, under another one: what continued the old one does not continue this.
    let mut first = record(1, RecordKind::Block, 0);
    store.write(&first, b"one").unwrap();
    store.write(&record(2, RecordKind::State, 1), b"state").unwrap();
    first.tokens[0] = TokenId(9999);
    assert!(store.write(&first, b"another").is_err(), "nothing is written over what is there");
    store.remove(RecordId(1));
    store.write(&first, b"another").unwrap();
    drop(store);
    let (_, found) = DiskStore::open(dir.path(), Identity([8; 32])).unwrap();
    assert_eq!(found.records, [first]);
}

#[test]
fn the_thread_reports_what_became_of_each_job() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = DiskStore::open(dir.path(), ME).unwrap();
    let (send, events) = channel();
    let thread = DiskThread::start(store, move |event| send.send(event).unwrap()).unwrap();
    for (record, unit) in chain() {
        thread.send(DiskJob::Write { record, unit: Box::new(|| Some(unit)) });
    }
    thread.send(DiskJob::Write { record: record(5, RecordKind::Block, 0), unit: Box::new(|| None) });
    thread.send(DiskJob::Write { record: record(7, RecordKind::State, 6), unit: Box::new(|| Some(vec![1])) });
    let units: Vec<_> = chain().into_iter().map(|(record, unit)| (record.id, unit)).collect();
    let records: Vec<RecordId> = units.iter().map(|(id, _)| *id).collect();
    thread.send(DiskJob::Read { ticket: 1, records: records.clone() });
    thread.send(DiskJob::Remove(vec![RecordId(3)]));
    thread.send(DiskJob::Read { ticket: 2, records: records.clone() });
    for id in 1..=4 {
        assert!(matches!(events.recv().unwrap(), DiskEvent::Written(written) if written == RecordId(id)));
    }
    for id in [5, 7] {
        assert!(
            matches!(events.recv().unwrap(), DiskEvent::NotWritten(record, WriteFault::Other) if record == RecordId(id))
        );
    }
    assert!(matches!(events.recv().unwrap(), DiskEvent::Read { ticket: 1, units: read } if read == units));
    assert!(matches!(events.recv().unwrap(), DiskEvent::Lost { ticket: 2, record: RecordId(3) }));
    drop(thread);
    assert!(events.recv().is_err());
}

/// The device that is always full stands where a record is to be written.
#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_told_from_other_faults_and_leaves_nothing_behind() {
    let dir = tempfile::tempdir().unwrap();
    let (mut store, _) = DiskStore::open(dir.path(), ME).unwrap();
    let partial = file(dir.path(), 2).with_extension("partial");
    std::os::unix::fs::symlink("/dev/full", &partial).unwrap();
    let [(first, a), (second, b), ..] = &chain()[..] else { panic!() };
    store.write(first, a).unwrap();
    let error = store.write(second, b).unwrap_err();
    let DiskError::Io { cause, .. } = &error else { panic!("{error}") };
    assert_eq!(cause.kind(), std::io::ErrorKind::StorageFull);
    assert!(!partial.exists() && !file(dir.path(), 2).exists(), "half a record is left");
    assert!(Path::new("/dev/full").exists(), "only the name is removed");
    assert_eq!(&store.read(first.id).unwrap(), a, "the others are whole");

    std::os::unix::fs::symlink("/dev/full", &partial).unwrap();
    let (send, events) = channel();
    let thread = DiskThread::start(store, move |event| send.send(event).unwrap()).unwrap();
    for _ in 0..2 {
        let unit = b.clone();
        thread.send(DiskJob::Write { record: second.clone(), unit: Box::new(|| Some(unit)) });
    }
    let full = events.recv().unwrap();
    assert!(matches!(full, DiskEvent::NotWritten(RecordId(2), WriteFault::Full)), "{full:?}");
    assert!(matches!(events.recv().unwrap(), DiskEvent::Written(RecordId(2))), "when there is room again");
}

#[cfg(unix)]
#[test]
fn a_pipe_that_nobody_fills_does_not_hold_the_start_up() {
    let dir = tempfile::tempdir().unwrap();
    let all = written(dir.path());
    let path = file(dir.path(), 2);
    std::fs::remove_file(&path).unwrap();
    assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
    let (mut store, found) = DiskStore::open(dir.path(), ME).unwrap();
    assert_eq!(found.records.len(), 1);
    assert!(!path.exists());
    assert_eq!(store.read(RecordId(1)).unwrap(), all[0].1);
}

#[test]
fn names_that_nobody_gave_are_no_records_and_no_numbers() {
    let dir = tempfile::tempdir().unwrap();
    let all = written(dir.path());
    let ours = ["ffffffffffffffff.record", "fffffffffffffffe.partial", "0123456789abcdef.record"];
    let others = ["FFFFFFFFFFFFFFFE.record", "+000000000000004.record", "4.record", "0000000000000004.record.old"];
    for name in ours.iter().chain(&others) {
        std::fs::write(dir.path().join(name), "x").unwrap();
    }
    // A whole record whose number is the highest there is.
    let last = record(u64::MAX, RecordKind::Block, 0);
    {
        let other = tempfile::tempdir().unwrap();
        let (mut store, _) = DiskStore::open(other.path(), ME).unwrap();
        store.write(&last, b"whole").unwrap();
        std::fs::copy(file(other.path(), u64::MAX), file(dir.path(), u64::MAX)).unwrap();
    }
    let (mut store, found) = DiskStore::open(dir.path(), ME).unwrap();
    assert_eq!((found.records.len(), found.removed), (4, 3));
    for (record, unit) in &all {
        assert_eq!(&store.read(record.id).unwrap(), unit);
    }
    assert!(ours.iter().all(|name| !dir.path().join(name).exists()));
    assert!(others.iter().all(|name| dir.path().join(name).exists()), "other spellings are not ours");
}
