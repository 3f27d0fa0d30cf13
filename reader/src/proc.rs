//! Parses what the kernel reports about processes in /proc (proc(5)). No other module parses these files.
//!
//! Names of programs, threads and files may contain any bytes, and a process may end between two reads.

use std::ffi::OsStr;
use std::fmt::Display;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use crate::time_namespace;

/// Page size in bytes, the unit of mappings.
pub(crate) const PAGE: u64 = shm_format::layout::PAGE as u64;

/// A `status` file (proc_pid_status(5)).
#[derive(Debug)]
pub(crate) struct Status(String);

impl Status {
    /// Reads that of a process: a pid, or `self`.
    ///
    /// # Errors
    /// If there is no such process.
    pub(crate) fn of_process(pid: impl Display) -> io::Result<Self> {
        Self::read(&format!("/proc/{pid}/status"))
    }

    /// Reads that of a thread.
    ///
    /// # Errors
    /// If there is no such thread.
    pub(crate) fn of_thread(pid: impl Display, tid: impl Display) -> io::Result<Self> {
        Self::read(&format!("/proc/{pid}/task/{tid}/status"))
    }

    fn read(path: &str) -> io::Result<Self> {
        Ok(Self(String::from_utf8_lossy(&fs::read(path)?).into_owned()))
    }

    /// Wraps the contents, or the beginning, of a status file.
    pub(crate) fn of_text(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// All fields with their values.
    pub(crate) fn fields(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.lines().filter_map(|line| line.split_once(':')).map(|(name, value)| (name, value.trim()))
    }

    /// The value of a field.
    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        self.fields().find(|(other, _)| *other == name).map(|(_, value)| value)
    }

    /// A set of signals or capabilities; empty if the field is missing.
    pub(crate) fn set(&self, name: &str) -> u64 {
        self.field(name).map_or(0, set)
    }

    /// The number of the process or thread in its own PID namespace, the innermost.
    pub(crate) fn inner_id(&self) -> Option<u32> {
        self.field("NSpid")?.split_whitespace().last()?.parse().ok()
    }

    /// Whether that namespace is not the one of /proc.
    pub(crate) fn is_in_inner_namespace(&self) -> bool {
        self.field("NSpid").is_some_and(|ids| ids.split_whitespace().count() > 1)
    }

    /// The kernel's letter for the thread's state.
    pub(crate) fn state(&self) -> Option<char> {
        self.field("State")?.chars().next()
    }
}

/// Parses a set as written in status files; empty if malformed.
pub(crate) fn set(digits: &str) -> u64 {
    u64::from_str_radix(digits, 16).unwrap_or(0)
}

/// The first 8 KiB of a file about a thread, in one read: there may be many threads, and the kernel generates the contents at
/// each read.
///
/// # Errors
/// If there is no such thread.
pub(crate) fn beginning_of(pid: u32, tid: u32, name: &str) -> io::Result<String> {
    const LONGEST: usize = 8192;
    let mut text = [0; LONGEST];
    let len = File::open(format!("/proc/{pid}/task/{tid}/{name}"))?.read(&mut text)?;
    Ok(String::from_utf8_lossy(&text[..len]).into_owned())
}

/// CPU time of a thread in nanoseconds, as the scheduler counts it; 0 if it has ended.
pub(crate) fn used_ns(pid: u32, tid: u32) -> u64 {
    let used = |text: String| text.split_ascii_whitespace().next()?.parse().ok();
    beginning_of(pid, tid, "schedstat").ok().and_then(used).unwrap_or(0)
}

/// The threads of a process, ascending.
///
/// # Errors
/// If there is no such process.
pub(crate) fn threads(pid: u32) -> io::Result<Vec<u32>> {
    let entries = fs::read_dir(format!("/proc/{pid}/task"))?;
    let mut threads: Vec<u32> =
        entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect();
    threads.sort_unstable();
    Ok(threads)
}

/// The number of threads of a process, by the links of their directory: 2, and one for each thread.
///
/// # Errors
/// If the process has ended.
pub(crate) fn thread_count(pid: u32) -> io::Result<u64> {
    Ok(fs::metadata(format!("/proc/{pid}/task"))?.nlink().saturating_sub(2))
}

/// Fields of a `stat` file (proc_pid_stat(5)).
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Stat {
    /// State of the thread, or of the process's main one.
    state: u8,
    /// Process id of the parent.
    pub(crate) parent: u32,
    /// The kernel's flags of the thread.
    flags: u64,
    /// CPU time of all threads, in clock ticks (sysconf(_SC_CLK_TCK), a hundredth of a second).
    pub(crate) cpu_ticks: u64,
    pub(crate) threads: u64,
    /// In clock ticks after boot, as in the initial time namespace.
    pub(crate) start_time: u64,
    /// The id belongs to a thread other than the main one of its process.
    pub(crate) is_other_thread: bool,
    /// False while the kernel replaces the program (exec): it then has mappings, and its environment is still empty. Also
    /// false for readers that may not trace the process.
    pub(crate) has_environment: bool,
}

impl Stat {
    /// Reads that of a process; `Ok(None)` if it is malformed.
    ///
    /// # Errors
    /// If it cannot be read.
    pub(crate) fn of(pid: u32) -> io::Result<Option<Self>> {
        Ok(Self::parse(&fs::read(format!("/proc/{pid}/stat"))?))
    }

    /// Reads that of a thread.
    pub(crate) fn of_thread(pid: u32, tid: u32) -> Option<Self> {
        Self::parse(&fs::read(format!("/proc/{pid}/task/{tid}/stat")).ok()?)
    }

    /// The name before the other fields may contain anything, including parentheses.
    fn parse(stat: &[u8]) -> Option<Self> {
        let after_name = stat.iter().rposition(|&byte| byte == b')')? + 2;
        let mut fields = stat.get(after_name..)?.split(|&byte| byte == b' ');
        let state = *fields.next()?.first()?;
        let mut field = |skip| std::str::from_utf8(fields.nth(skip)?).ok();
        let number = |text: &str| text.parse::<u64>().ok();
        let parent = number(field(0)?)? as u32;
        let flags = number(field(4)?)?;
        let cpu_ticks = number(field(4)?)?.saturating_add(number(field(0)?)?);
        let threads = number(field(4)?)?;
        // Skips itrealvalue.
        let start_time = time_namespace::own().initial_start_time(number(field(1)?)?);
        // Only the end of a process sends a signal to the parent. The field is the 38th.
        let is_other_thread = field(15).is_some_and(|signal| signal == "-1");
        // `env_end`, the 51st.
        let has_environment = field(12).is_some_and(|end| end != "0");
        Some(Self { state, parent, flags, cpu_ticks, threads, start_time, is_other_thread, has_environment })
    }

    /// True if the kernel has made the thread to work for the process, as for io_uring: it runs no code of the program.
    pub(crate) fn is_kernel_worker(&self) -> bool {
        /// PF_IO_WORKER, PF_USER_WORKER (include/linux/sched.h).
        const WORKER: u64 = 0x10 | 0x4000;
        self.flags & WORKER != 0
    }

    /// True if it executes no code of its program any more.
    pub(crate) fn is_exiting(&self) -> bool {
        /// PF_EXITING (include/linux/sched.h).
        const EXITING: u64 = 0x4;
        self.flags & EXITING != 0
    }

    /// True if it is stopped, by a signal or a debugger.
    pub(crate) fn is_stopped(&self) -> bool {
        matches!(self.state, b'T' | b't')
    }

    /// True if it has ended.
    pub(crate) fn is_zombie(&self) -> bool {
        matches!(self.state, b'Z' | b'X')
    }
}

/// When a process started, in clock ticks after boot, as in the initial time namespace; `None` if there is no such process, or only its zombie.
pub(crate) fn start_time(pid: u32) -> Option<u64> {
    Stat::of(pid).ok()?.filter(|stat| !stat.is_zombie()).map(|stat| stat.start_time)
}

/// All processes.
pub(crate) fn processes() -> Vec<u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten();
    entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect()
}

/// The id that the kernel gave last to a process or thread; the next one gets the next free number (proc_loadavg(5)).
pub(crate) fn last_id() -> Option<u32> {
    fs::read_to_string("/proc/loadavg").ok()?.split_whitespace().nth(4)?.parse().ok()
}

/// The environment with which a process's program was started: `NAME=VALUE`, each ended by a zero byte.
///
/// # Errors
/// If the process has ended, or this user may not read its memory.
pub(crate) fn environment(pid: u32) -> io::Result<Vec<u8>> {
    fs::read(format!("/proc/{pid}/environ"))
}

/// A line of a `maps` file (proc_pid_maps(5)).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mapping {
    /// First address.
    pub(crate) start: u64,
    /// End address, exclusive.
    pub(crate) end: u64,
    /// It is executable.
    pub(crate) executable: bool,
    /// Offset in its file.
    pub(crate) offset: u64,
    /// Inode of its file.
    pub(crate) inode: u64,
    /// Its file, or a name such as `[stack]`; otherwise empty.
    pub(crate) path: PathBuf,
    /// The file was deleted.
    pub(crate) is_deleted: bool,
}

impl Mapping {
    /// Parses `START-END PERMISSIONS OFFSET DEVICE INODE PATH`.
    pub(crate) fn parse(line: &[u8]) -> Option<Self> {
        let mut fields = line.splitn(6, |&byte| byte == b' ');
        let mut field = || fields.next();
        let (range, permissions, offset) = (field()?, field()?, field()?);
        let (_device, inode, path) = (field()?, field()?, field().unwrap_or_default().trim_ascii_start());
        let (start, end) = std::str::from_utf8(range).ok()?.split_once('-')?;
        let number = |digits| u64::from_str_radix(digits, 16).ok();
        let (path, is_deleted) = path.strip_suffix(b" (deleted)").map_or((path, false), |path| (path, true));
        Some(Self {
            start: number(start)?,
            end: number(end)?,
            executable: permissions.contains(&b'x'),
            offset: number(std::str::from_utf8(offset).ok()?)?,
            inode: std::str::from_utf8(inode).ok()?.parse().ok()?,
            path: PathBuf::from(OsStr::from_bytes(path)),
            is_deleted,
        })
    }

    /// True if it maps a file.
    pub(crate) fn is_of_file(&self) -> bool {
        self.path.is_absolute()
    }
}

/// The mappings of a process, by address.
///
/// # Errors
/// If the process has ended, or permission is denied.
pub(crate) fn mappings(pid: u32) -> io::Result<Vec<Mapping>> {
    let maps = fs::read(format!("/proc/{pid}/maps"))?;
    Ok(maps.split(|&byte| byte == b'\n').filter_map(Mapping::parse).collect())
}

/// The first line of a file, trimmed; `None` if it cannot be read.
pub(crate) fn line(path: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    Some(text.lines().next().unwrap_or("").trim().to_owned())
}

/// The number in a one-line file.
pub(crate) fn number(path: &str) -> Option<i64> {
    line(path)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn names_do_not_confuse_the_fields() {
        let line = b"12 (a ) (b) R 9 12 12 0 -1 4194304 1 2 3 4 5 6 7 8 20 0 1 0 777 99 1 25 26 27 28 29 30 31 32 33 34 35 36 37 -1 39\n";
        let expected = Stat {
            state: b'R',
            parent: 9,
            flags: 4_194_304,
            cpu_ticks: 11,
            threads: 1,
            start_time: 777,
            is_other_thread: true,
            has_environment: false,
        };
        assert_eq!(Stat::parse(line), Some(expected));
        assert_eq!(Stat::parse(b"12 (x"), None);
        assert_eq!(Stat::parse(b"12 (x)"), None);
        let status = Status::of_text("Name:\tname: odd\nState:\tD (disk sleep)\nSigBlk:\t0000000000000011\n");
        assert_eq!((status.field("Name"), status.state()), (Some("name: odd"), Some('D')));
        assert_eq!((status.set("SigBlk"), status.set("SigPnd")), (0x11, 0));
        assert_eq!(status.field("No such key"), None);
    }

    #[test]
    fn a_program_that_has_begun_has_an_environment() {
        assert!(Stat::of(std::process::id()).unwrap().unwrap().has_environment);
        let with_end = |end: &str| {
            let fields: Vec<String> = (4..=52).map(|field| field.to_string()).collect();
            let line = format!("12 (a ) (b) R {}\n", fields.join(" ")).replace(" 51 ", &format!(" {end} "));
            Stat::parse(line.as_bytes()).unwrap().has_environment
        };
        assert!(with_end("140723") && !with_end("0"));
    }

    #[test]
    fn lines_of_maps() {
        let line = b"7fcafe600000-7fcafe792000 r-xp 014c4000 fe:00 247584                     /usr/bin/no de";
        let expected = Mapping {
            start: 0x7fca_fe60_0000,
            end: 0x7fca_fe79_2000,
            executable: true,
            offset: 0x14c_4000,
            inode: 247_584,
            path: "/usr/bin/no de".into(),
            is_deleted: false,
        };
        assert_eq!(Mapping::parse(line), Some(expected));
        let without = Mapping::parse(b"1-2 rw-p 0 0:0 0").unwrap();
        assert!(without.path.as_os_str().is_empty() && !without.executable && !without.is_of_file());
        let deleted = Mapping::parse(b"1-2 r-xp 0 0:0 7 /a b\xff (deleted)").unwrap();
        assert_eq!((deleted.path.as_os_str().as_bytes(), deleted.is_deleted), (&b"/a b\xff"[..], true));
        assert!(Mapping::parse(b"").is_none() && Mapping::parse(b"x-y rw-p 0 0:0 0").is_none());
        let own = mappings(std::process::id()).unwrap();
        assert!(own.iter().any(|mapping| mapping.path == Path::new("[stack]")));
    }

    #[test]
    fn our_own_threads_are_there() {
        let pid = std::process::id();
        assert!(threads(pid).unwrap().contains(&pid));
        assert_eq!(Status::of_process("self").unwrap().field("Name"), line("/proc/self/comm").as_deref());
        assert!(Status::of_thread(pid, 0).is_err() && start_time(pid).is_some());
    }
}
