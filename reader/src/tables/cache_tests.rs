//! Tests what the cache accepts and what it removes.

use std::os::unix::fs::symlink;
use std::path::Path;

use compilation::compile;
use offline::SourceFile;

use super::*;

const HOUR: Duration = Duration::from_secs(60 * 60);

struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("selfwind-cache-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir(&path).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o700)).unwrap();
        Self(path)
    }

    fn cache(&self) -> Cache {
        Cache::at(&self.0.join("tables")).unwrap()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The table of this very test, as if it had this build-id.
fn table(build_id: &[u8]) -> Vec<u8> {
    let file = SourceFile::read(Path::new("/proc/self/exe")).unwrap();
    compile(file.elf().eh_frame.unwrap(), 0, build_id).unwrap()
}

fn names(cache: &Cache) -> Vec<String> {
    let mut names: Vec<_> = fs::read_dir(cache.directory())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

fn age(path: &Path, age: Duration) {
    let times = FileTimes::new().set_modified(SystemTime::now() - age);
    fs::set_permissions(path, Permissions::from_mode(0o600)).unwrap();
    OpenOptions::new().write(true).open(path).unwrap().set_times(times).unwrap();
}

#[test]
fn what_is_stored_comes_back_and_is_private() {
    let scratch = Scratch::new("store");
    let cache = scratch.cache();
    assert!(
        matches!(cache.load(&[1; 20]), Err(Unusable::System(error)) if error.kind() == io::ErrorKind::NotFound)
    );
    let path = cache.store(&[1; 20], &table(&[1; 20])).unwrap();
    assert_eq!(cache.load(&[1; 20]).unwrap(), table(&[1; 20]));
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o400);
    assert_eq!(fs::metadata(cache.directory()).unwrap().mode() & 0o7777, 0o700);
    cache.store(&[1; 20], &table(&[1; 20])).unwrap();
    assert_eq!(names(&cache), ["0101010101010101010101010101010101010101.v5.table"]);
    assert!(cache.store(&[], &table(&[])).is_err());
    assert!(cache.holds(&[1; 20]) && !cache.holds(&[2; 20]));
    age(&path, 48 * HOUR);
    assert!(!cache.holds(&[1; 20]), "due for a check");
    cache.load(&[1; 20]).unwrap();
    assert!(cache.holds(&[1; 20]));
    assert!(fs::metadata(&path).unwrap().modified().unwrap().elapsed().unwrap() < HOUR);
}

#[test]
fn nothing_is_believed_that_others_could_have_written() {
    let scratch = Scratch::new("trust");
    let cache = scratch.cache();
    let good = table(&[2; 20]);
    let path = cache.store(&[2; 20], &good).unwrap();
    fs::set_permissions(&path, Permissions::from_mode(0o620)).unwrap();
    assert!(matches!(cache.load(&[2; 20]), Err(Unusable::Untrusted)) && !cache.holds(&[2; 20]));
    let elsewhere = scratch.0.join("elsewhere");
    fs::rename(&path, &elsewhere).unwrap();
    fs::set_permissions(&elsewhere, Permissions::from_mode(0o600)).unwrap();
    symlink(&elsewhere, &path).unwrap();
    assert!(matches!(cache.load(&[2; 20]), Err(Unusable::Untrusted)));
    cache.store(&[2; 20], &good).unwrap();
    assert!(cache.load(&[2; 20]).is_ok() && fs::symlink_metadata(&path).unwrap().is_file());
    if geteuid().is_root() {
        std::os::unix::fs::chown(&path, Some(65534), None).unwrap();
        assert!(matches!(cache.load(&[2; 20]), Err(Unusable::Untrusted)));
    }
    let open = scratch.0.join("open");
    fs::create_dir(&open).unwrap();
    fs::set_permissions(&open, Permissions::from_mode(0o770)).unwrap();
    for (directory, reason) in [
        (open.as_path(), "only this user or root"),
        (elsewhere.as_path(), "only this user or root"),
        (Path::new("relative"), "not an absolute path"),
        (Path::new("/proc/self/selfwind"), "/proc/self/selfwind: "),
    ] {
        let error = Cache::at(directory).unwrap_err().to_string();
        assert!(error.contains(reason), "{error}");
    }
}

#[test]
fn damage_is_found() {
    let scratch = Scratch::new("damage");
    let cache = scratch.cache();
    let good = table(&[3; 20]);
    for (damaged, reason) in [
        (&good[..good.len() - 8], "truncated"),
        (&good[..0], "not an unwind table"),
        (&[&good[..200], &[!good[200]], &good[201..]].concat(), "checksum"),
        (&table(&[4; 20]), "another build-id"),
    ] {
        cache.store(&[3; 20], damaged).unwrap();
        let error = cache.load(&[3; 20]).unwrap_err().to_string();
        assert!(error.contains(reason), "{error}");
        assert_eq!(cache.holds(&[3; 20]), reason == "checksum", "{reason}: seen at once");
    }
}

#[test]
fn pruning_keeps_what_is_used_and_fits() {
    let scratch = Scratch::new("prune");
    let cache = scratch.cache();
    let bytes = table(&[0; 20]).len() as u64;
    let stored = |id: u8, hours: u32| {
        let path = cache.store(&[id; 2], &table(&[id; 2])).unwrap();
        age(&path, hours * HOUR);
        path.file_name().unwrap().to_str().unwrap().to_owned()
    };
    let (newest, middle, oldest, ancient) = (stored(1, 1), stored(2, 2), stored(3, 3), stored(4, 10_000));
    for name in ["ab.v2.table", ".ab.v5.table.77.1", "notes.txt"] {
        fs::write(cache.directory().join(name), "x").unwrap();
    }
    age(&cache.directory().join(".ab.v5.table.77.1"), 2 * HOUR);
    fs::write(cache.directory().join(".ab.v5.table.78.1"), "being written").unwrap();
    let limits = Limits { bytes: 2 * bytes, ..Limits::default() };
    let pruned = cache.prune(limits).unwrap();
    assert_eq!((pruned.removed, pruned.kept, pruned.kept_bytes), (4, 2, 2 * bytes));
    let left = names(&cache);
    assert_eq!(left, [".ab.v5.table.78.1", newest.as_str(), middle.as_str(), "notes.txt"]);
    assert!(!left.contains(&oldest) && !left.contains(&ancient));

    fs::write(cache.directory().join("ef.v5.table"), "damaged").unwrap();
    assert_eq!(cache.prune(Limits::default()).unwrap().kept, 3);
    assert_eq!(cache.prune(Limits { examine: true, ..Limits::default() }).unwrap().kept, 2);
}
