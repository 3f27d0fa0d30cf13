//! Interpreters and servers in everyday use, with default settings and at the highest rate of perf events: they behave
//! as they do alone, and their stacks reach the root. Each server is also attached to while it serves.
//!
//! A program that is not installed fails its test; `scripts/test` installs all.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use selfwind_tests::binary::selfwind;
use selfwind_tests::outcome::{Outcome, run, shell_status};
use selfwind_tests::recording::{Recorder, folded, record_unharmed, stats};
use selfwind_tests::scratch::Scratch;
use selfwind_tests::stats::Stats;

/// A server that is not ready by then has failed.
const PATIENCE: Duration = Duration::from_secs(60);

/// The default settings, and perf events at a rate that hits every instruction sooner or later.
fn recorders() -> [(&'static str, Recorder); 2] {
    [("default", Recorder::at(997)), ("perf", Recorder::at(9973).event("perf"))]
}

/// Asserts that all but one in twenty stacks, or all but one, reach a root.
fn assert_rooted(what: &str, stats: &Stats) {
    let (samples, rooted) = (stats.number("samples"), stats.rooted());
    assert!(samples >= 20, "{what}: too few samples: {:#}", stats.0);
    assert!(
        samples - rooted <= (samples / 20).max(1),
        "{what}: {rooted} of {samples}: {:#}",
        stats.0["detail"]["ends"]
    );
}

/// Records the running process `pid` into `file`, to its end.
fn record_process(pid: u32, file: &Path, directory: &Path) -> Child {
    let mut recorder = Command::new(selfwind());
    recorder.args(["record", "-q", "-F", "997", "-p", &pid.to_string(), "-o"]).arg(file);
    recorder.env("XDG_RUNTIME_DIR", directory).stdin(Stdio::null());
    recorder.spawn().expect("selfwind runs")
}

/// Runs `program`, attaches to it and records it; asserts that its output is that of `alone`.
fn attached(program: &str, arguments: &[&str], alone: &Outcome) -> Stats {
    /// By then an interpreter has started, and will be working for some time.
    const STARTED: Duration = Duration::from_millis(250);
    let scratch = Scratch::new();
    let file = scratch.join("attached.data");
    let mut command = Command::new(program);
    let child = command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = child.spawn().unwrap_or_else(|error| panic!("{program}: {error}"));
    std::thread::sleep(STARTED);
    let mut recorder = record_process(child.id(), &file, scratch.path());
    let output = child.wait_with_output().expect("our child");
    assert!(recorder.wait().expect("our child").success(), "{program}");
    let seen = Outcome {
        status: shell_status(output.status),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    };
    assert_eq!(seen, *alone, "{program}, attached to");
    let stats = stats(&file);
    stats.assert_adds_up();
    stats
}

/// Runs `program` alone, recorded in every way, and attached to; asserts that `functions` are in each profile.
fn interpreter(program: &str, arguments: &[&str], functions: &[&str]) {
    for (how, recorder) in recorders() {
        let recording = record_unharmed(&recorder, Path::new(program), arguments);
        assert_eq!(recording.outcome.status, 0, "{program} {how}: {:?}", recording.outcome);
        assert_rooted(&format!("{program} {how}"), &recording.stats());
        let folded = recording.folded();
        for function in functions {
            assert!(folded.inclusive(function) > 0, "{program} {how}: no {function} in {folded:?}");
        }
    }
    let alone = run(Command::new(program).args(arguments));
    assert_rooted(&format!("{program}, attached to"), &attached(program, arguments, &alone));
}

#[test]
fn ruby() {
    let script = "clock = ->{ Process.clock_gettime(Process::CLOCK_PROCESS_CPUTIME_ID) }; last = 0; \
                  last = (1..3000).map { |i| i.to_s * 3 }.sort.join.size while clock.() < 0.7; puts last";
    interpreter("ruby", &["-e", script], &["ruby_run_node"]);
}

/// The interpreter briefly moves the stack pointer to the end of the stack when it starts.
#[test]
fn ruby_starts_a_hundred_times() {
    let alone = run(Command::new("irb").arg("--version"));
    for round in 0..100 {
        let recording = Recorder::at(9973).event("perf").record(Path::new("irb"), &["--version"]);
        assert_eq!(recording.outcome, alone, "round {round}");
    }
}

#[test]
fn php() {
    let script = "$n = 0; while (getrusage()['ru_utime.tv_sec'] * 1e6 + getrusage()['ru_utime.tv_usec'] < 7e5) \
                  { $a = []; for ($i = 0; $i < 3000; $i++) $a[] = md5((string)$i); sort($a); $n = count($a); } echo $n;";
    interpreter("php", &["-n", "-r", script], &["zend_eval_stringl"]);
}

#[test]
fn r() {
    let script =
        "last <- 0; while (proc.time()[[1]] < 1) { x <- sort(sin(1:20000)); last <- length(x) }; cat(last)";
    interpreter("R", &["--vanilla", "-s", "-e", script], &["Rf_eval"]);
}

#[test]
fn lua() {
    let script = "local n; while os.clock() < 0.7 do local t = {}; for i = 1, 3000 do t[i] = tostring(i * 7 % 3001) end; \
                  table.sort(t); n = #t end; print(n)";
    interpreter("lua5.4", &["-e", script], &["lua_pcallk"]);
    interpreter("luajit", &["-e", script], &["lua_pcall"]);
}

/// Its compilers and collectors are ordinary threads; frames of compiled methods have no unwind information.
#[test]
fn java() {
    let scratch = Scratch::new();
    let source = scratch.join("Busy.java");
    let program = "public class Busy { public static void main(String[] a) throws Exception { \
        Thread[] t = new Thread[3]; int[] sums = new int[3]; \
        for (int k = 0; k < 3; k++) { final int n = k; t[k] = new Thread(() -> { \
        for (int i = 0; i < 60; i++) { String[] s = new String[4000]; for (int j = 0; j < s.length; j++) s[j] = \
        Integer.toString(j * 7919 % 4001); java.util.Arrays.sort(s); sums[n] += s.length; } }); t[k].start(); } \
        for (Thread each : t) each.join(); System.out.println(sums[0] + sums[1] + sums[2]); } }";
    fs::write(&source, program).expect("the scratch directory is writable");
    for (how, recorder) in recorders() {
        let recording = record_unharmed(&recorder, Path::new("java"), &[source.to_str().expect("UTF-8")]);
        assert_eq!(recording.outcome.stdout, "720000\n", "{how}: {:?}", recording.outcome);
        let stats = recording.stats();
        assert!(stats.number("threads") >= 8 && stats.number("samples") >= 20, "{how}: {:#}", stats.0);
    }
    let arguments = [source.to_str().expect("UTF-8")];
    let alone = run(Command::new("java").args(arguments));
    let stats = attached("java", &arguments, &alone);
    assert!(stats.number("threads") >= 8 && stats.number("samples") >= 20, "{:#}", stats.0);
}

/// Formatters run under a seccomp filter and exec one another.
#[test]
fn man() {
    for (_, recorder) in recorders() {
        for _ in 0..5 {
            record_unharmed(&recorder, Path::new("man"), &["-P", "cat", "ls"]);
        }
    }
}

#[test]
fn chromium() {
    let scratch = Scratch::new();
    let page = scratch.join("page.html");
    let text = "<p id=p></p><script>let s = 0; for (let i = 0; i < 3e7; i++) s = (s * 31 + i) | 0; \
                document.getElementById('p').textContent = 'sum ' + s</script>";
    fs::write(&page, text).expect("the scratch directory is writable");
    let arguments = |profile: &str| {
        let profile = format!("--user-data-dir={}", scratch.join(profile).display());
        let url = format!("file://{}", page.display());
        let fixed = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"];
        let fixed = fixed.into_iter().chain(["--disable-background-networking", "--dump-dom"]);
        fixed.map(String::from).chain([profile, url]).collect::<Vec<_>>()
    };
    let alone = run(Command::new("chromium").args(arguments("alone")));
    assert!(alone.status == 0 && alone.stdout.contains("<p id=\"p\">sum "), "{alone:?}");
    for (how, recorder) in recorders() {
        let recording = recorder.record(Path::new("chromium"), &arguments(how));
        // Its warnings differ from run to run.
        let seen = (recording.outcome.status, &recording.outcome.stdout);
        assert_eq!(seen, (0, &alone.stdout), "{how}: {:?}", recording.outcome);
        recording.assert_adds_up();
        let stats = recording.stats();
        assert!(stats.number("processes") >= 4 && stats.number("samples") >= 100, "{how}: {:#}", stats.0);
    }
}

/// A server: how its directory is prepared, how it is started there, when it is ready, what makes it work, how it is
/// stopped. All but the start are shell scripts that run in the directory.
struct Server {
    prepare: &'static str,
    start: &'static [&'static str],
    ready: &'static str,
    load: &'static str,
    end: &'static str,
    /// The started process itself serves, not its children.
    serves_itself: bool,
    functions: &'static [&'static str],
}

/// A running server.
struct Running<'a> {
    server: &'a Server,
    directory: &'a Path,
    child: Child,
}

impl Server {
    fn script(&self, directory: &Path, script: &str) -> Outcome {
        let mut command = Command::new("bash");
        run(command.args(["-ec", script]).current_dir(directory).env("LC_ALL", "C"))
    }

    fn must(&self, directory: &Path, script: &str) -> String {
        let outcome = self.script(directory, script);
        assert_eq!(outcome.status, 0, "{script}: {outcome:?}");
        outcome.stdout
    }

    /// Below /tmp, since other users must be able to enter it.
    fn directory(&self) -> PathBuf {
        let name =
            format!("selfwind-server-{}-{}", std::process::id(), self.start[self.start.len() - 1].len());
        let directory = Path::new("/tmp").join(name);
        let _ = fs::remove_dir_all(&directory);
        fs::create_dir_all(&directory).expect("/tmp is writable");
        self.must(&directory, self.prepare);
        directory
    }

    fn start<'a>(&'a self, directory: &'a Path, mut command: Command) -> Running<'a> {
        command.args(self.start).current_dir(directory).stdin(Stdio::null());
        let log = fs::File::create(directory.join("log")).expect("writable");
        command.stdout(Stdio::null()).stderr(log);
        let child = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let mut running = Running { server: self, directory, child };
        let begin = Instant::now();
        while self.script(directory, self.ready).status != 0 {
            assert!(begin.elapsed() < PATIENCE, "not ready: {}", running.said());
            assert!(running.child.try_wait().expect("our child").is_none(), "ended: {}", running.said());
            std::thread::sleep(Duration::from_millis(100));
        }
        running
    }
}

impl Running<'_> {
    fn said(&self) -> String {
        let mut said = String::new();
        let _ = fs::File::open(self.directory.join("log")).and_then(|mut log| log.read_to_string(&mut said));
        said
    }

    fn end(mut self) {
        self.server.must(self.directory, self.server.end);
        let status = self.child.wait().expect("our child");
        assert!(status.success(), "{status}: {}", self.said());
    }
}

fn plain(program: &str) -> Command {
    Command::new(program)
}

/// Asserts that it gives the same answers alone, recorded in every way, and attached to.
fn served(server: &Server) {
    let directory = &server.directory();
    let (first, rest) = server.start.split_first().expect("a program");
    let server = &Server { start: rest, ..*server };
    let alone = server.start(directory, plain(first));
    let expected = server.must(directory, server.load);
    alone.end();
    for (how, recorder) in recorders() {
        let file = directory.join(format!("by-{how}.data"));
        let command = recorder.command(&file, Path::new(first), &[""; 0]);
        let running = server.start(directory, command);
        assert_eq!(server.must(directory, server.load), expected, "{how}");
        running.end();
        assert_served(server, how, &file);
    }
    let running = server.start(directory, plain(first));
    let file = directory.join("attached.data");
    let mut recorder = record_process(running.child.id(), &file, directory);
    let begin = Instant::now();
    while !file.exists() && begin.elapsed() < PATIENCE {
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(server.must(directory, server.load), expected, "attached");
    running.end();
    assert!(recorder.wait().expect("our child").success());
    if server.serves_itself {
        assert_served(server, "attached", &file);
    }
    let _ = fs::remove_dir_all(directory);
}

fn assert_served(server: &Server, how: &str, file: &Path) {
    let (stats, folded) = (stats(file), folded(file));
    stats.assert_adds_up();
    assert_rooted(how, &stats);
    for function in server.functions {
        assert!(folded.inclusive(function) > 0, "{how}: no {function} in {folded:?}");
    }
}

/// The master forks its workers; it is attached to as one process without them.
#[test]
fn nginx() {
    served(&Server {
        prepare: "printf 'daemon off; master_process off; user root; pid pid; error_log stderr; events {} http { \
                  access_log off; client_body_temp_path t1; proxy_temp_path t2; fastcgi_temp_path t3; uwsgi_temp_path \
                  t4; scgi_temp_path t5; server { listen unix:socket; root .; gzip on; gzip_types text/plain; \
                  default_type text/plain; location / { } } }' >nginx.conf; seq 40000 >numbers",
        start: &["/usr/sbin/nginx", "-p", ".", "-e", "stderr", "-c", "nginx.conf"],
        ready: "curl -sf --unix-socket socket http://x/nginx.conf >/dev/null",
        load: "for i in $(seq 300); do curl -sf -H 'Accept-Encoding: gzip' --unix-socket socket http://x/numbers | zcat | md5sum; \
               done | sort -u",
        end: "kill -QUIT $(cat pid)",
        serves_itself: true,
        functions: &["deflate"],
    });
}

#[test]
fn mariadb() {
    served(&Server {
        prepare: "mariadb-install-db --no-defaults --user=root --datadir=$PWD/db --auth-root-authentication-method=normal \
                  --skip-test-db >/dev/null 2>&1",
        start: &[
            "/usr/sbin/mariadbd",
            "--no-defaults",
            "--user=root",
            "--datadir=./db",
            "--socket=socket",
            "--skip-networking",
            "--pid-file=pid",
        ],
        ready: "mariadb-admin --no-defaults -uroot -S $PWD/db/socket ping >/dev/null 2>&1",
        load: "mariadb --no-defaults -uroot -S $PWD/db/socket -N -e 'select benchmark(1500000, md5(1)); \
               with recursive n(x) as (select 1 union all select x + 1 from n where x < 900) select sum(length(sha2(x, 256))) from n'",
        end: "mariadb-admin --no-defaults -uroot -S $PWD/db/socket shutdown",
        serves_itself: true,
        functions: &["start_thread"],
    });
}

/// Root starts it as another user, as services do.
#[test]
fn postgresql_as_another_user() {
    served(&Server {
        prepare: "chown 65534 .; bin=$(ls -d /usr/lib/postgresql/*/bin | tail -1); ln -s $bin bin; \
                  setpriv --reuid=65534 --regid=65534 --clear-groups bin/initdb -D pg -A trust -U me >/dev/null",
        start: &[
            "/usr/bin/setpriv",
            "--reuid=65534",
            "--regid=65534",
            "--clear-groups",
            "bin/postgres",
            "-D",
            "pg",
            "-k",
            ".",
            "-c",
            "listen_addresses=",
        ],
        ready: "psql -h $PWD/pg -U me -d postgres -c 'select 1' >/dev/null 2>&1",
        load: "psql -h $PWD/pg -U me -d postgres -Atc 'select sum(length(md5(i::text))) from generate_series(1, 700000) i'",
        end: "kill -INT $(head -1 pg/postmaster.pid)",
        serves_itself: false,
        functions: &["main"],
    });
}

#[test]
fn redis() {
    served(&Server {
        prepare: "true",
        start: &["/usr/bin/redis-server", "--port", "0", "--save", "", "--unixsocket", "socket"],
        ready: "redis-cli -s socket ping >/dev/null 2>&1",
        load: "redis-benchmark -s socket -q -n 30000 -t set,get,lpush >/dev/null; \
               redis-cli -s socket --raw eval 'local s = 0; for i = 1, 3000000 do s = s + i % 7 end; return s' 0",
        end: "redis-cli -s socket shutdown nosave",
        serves_itself: true,
        functions: &["aeMain"],
    });
}
