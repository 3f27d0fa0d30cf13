//! Regions are written by other programs, and a program may be broken or malicious: whatever a region holds,
//! reading it ends, in bounded memory, without a panic.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use selfwind_profile::profile_file::{Event, ProfileWriter, SampleRef};
use selfwind_tests::random::Random;
use shm_format::layout::PAGE;

use crate::drain::collector::{Collector, Scope};
use crate::drain::listener::Listener;
use crate::target::agent_file;
use crate::terminal::notices::Notices;

/// Counts, and writes a profile that nobody reads: what comes out must also be storable.
struct Counter {
    samples: usize,
    processes: usize,
    writer: ProfileWriter<io::Sink>,
}

impl Listener for Counter {
    fn event(&mut self, event: Event) -> io::Result<()> {
        self.processes += usize::from(matches!(event, Event::Process(_)));
        self.writer.push(&event)
    }

    fn sample(&mut self, sample_ref: SampleRef<'_>) -> io::Result<()> {
        self.samples += 1;
        self.writer.push_sample(sample_ref).map(drop)
    }

    fn end_pass(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn read_all(directory: &Path) -> Counter {
    let mut counter = Counter { samples: 0, processes: 0, writer: ProfileWriter::new(io::sink()).unwrap() };
    let mut collector = Collector::new(vec![directory.to_owned()], Scope::Everything, Notices::Quiet);
    collector.pass(&mut counter).unwrap();
    collector.finish(&mut counter).unwrap();
    counter
}

/// A region as the agent left it: its name, its length, and the pages that are not zero.
struct Specimen {
    name: String,
    len: u64,
    pages: Vec<(u64, Vec<u8>)>,
}

impl Specimen {
    /// Runs a program under the agent to its end.
    fn make(directory: &Path) -> Self {
        let program = directory.join("spin");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/record/spin.c");
        let built = Command::new("cc").args(["-O1", "-pthread", "-o"]).args([&program, &source]).status();
        assert!(built.expect("a C compiler is needed: cc").success());
        let agent = agent_file::unpack().unwrap();
        let run = directory.join("run");
        fs::create_dir(&run).unwrap();
        fs::set_permissions(&run, fs::Permissions::from_mode(0o700)).unwrap();
        let status = Command::new(&program)
            .args(["0.3", "3"])
            .env("LD_PRELOAD", &agent)
            .env("XDG_RUNTIME_DIR", &run)
            .env("SELFWIND_FREQ", "500")
            .status()
            .unwrap();
        assert_eq!(status.code(), Some(5));
        let path = fs::read_dir(run.join("selfwind/flight")).unwrap().next().unwrap().unwrap().path();
        Self::read(&path)
    }

    fn read(path: &Path) -> Self {
        let file = File::open(path).unwrap();
        let len = file.metadata().unwrap().len();
        let mut pages = Vec::new();
        for at in (0..len).step_by(PAGE) {
            let mut page = vec![0; PAGE];
            file.read_exact_at(&mut page, at).unwrap();
            if page.iter().any(|&byte| byte != 0) {
                pages.push((at, page));
            }
        }
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        Self { name, len, pages }
    }

    fn write(&self, directory: &Path, len: u64, change: impl FnOnce(&mut Vec<(u64, Vec<u8>)>)) -> PathBuf {
        let path = directory.join(&self.name);
        let _ = fs::remove_file(&path);
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path).unwrap();
        file.set_len(len).unwrap();
        let mut pages = self.pages.clone();
        change(&mut pages);
        for (at, page) in pages.iter().filter(|(at, _)| *at < len) {
            file.write_all_at(&page[..PAGE.min((len - at) as usize)], *at).unwrap();
        }
        path
    }
}

#[test]
fn no_region_breaks_the_reader() {
    let directory = std::env::temp_dir().join(format!("selfwind-hostile-{}", std::process::id()));
    let _ = fs::remove_dir_all(&directory);
    fs::create_dir(&directory).unwrap();
    let specimen = Specimen::make(&directory);
    let session = directory.join("session");
    fs::create_dir(&session).unwrap();

    let path = specimen.write(&session, specimen.len, |_| ());
    let whole = read_all(&session);
    assert!(whole.processes == 1 && whole.samples > 10, "{} samples", whole.samples);
    assert!(!path.exists(), "a drained region of a dead process is removed");

    let mut random = Random::new(0x5eed_cafe_f00d_d00d);
    let (mut understood, mut most) = (0, 0);
    for round in 0..400 {
        specimen.write(&session, specimen.len, |pages| {
            for _ in 0..1 + random.below(8) {
                // The first pages hold what all the rest depends on.
                let limit = if random.below(2) == 0 { pages.len().min(3) } else { pages.len() };
                let (_, page) = &mut pages[random.below(limit)];
                match random.below(3) {
                    0 => page[random.below(PAGE)] = random.below(256) as u8,
                    1 => page[random.below(PAGE)] ^= 1 << random.below(8),
                    _ => {
                        let at = random.below(PAGE / 8) * 8;
                        let value = [0, 1, u64::MAX, u64::MAX >> 1, 1 << 32, 0xffff][random.below(6)];
                        page[at..at + 8].copy_from_slice(&value.to_le_bytes());
                    }
                }
            }
        });
        let counted = read_all(&session);
        understood += usize::from(counted.samples > 0);
        most = most.max(counted.samples);
        assert!(counted.samples <= 100_000, "round {round}: {} samples", counted.samples);
    }
    assert!(understood > 100, "damage mostly leaves something to read: {understood} of 400");

    // Shorter than it says, whatever the length: never mapped beyond its end.
    for len in [0, 1, 4096, 8192, 12_288, 1 << 20, specimen.len - shm_format::ANSWERS_LEN as u64 - 4096] {
        specimen.write(&session, len, |_| ());
        assert_eq!(read_all(&session).samples, 0, "length {len}");
    }
    fs::remove_dir_all(&directory).unwrap();
}
