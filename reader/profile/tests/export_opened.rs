//! Exports opened by the programs they are for: the Firefox Profiler, speedscope, a pprof decoder, a browser.

mod export;

use std::path::Path;
use std::process::Command;

use export::consumers::{chromium, installed, node, output};
use export::{Made, make};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use selfwind_profile::output::Format;
use selfwind_tests::skip::skip;
use serde_json::Value;

fn exported(test: &str, format: Format, name: &str) -> (Made, std::path::PathBuf) {
    let made = make(test);
    let file = made.path.with_file_name(name);
    std::fs::write(&file, made.export(format)).unwrap();
    (made, file)
}

/// The Firefox Profiler's own command line: its parser, upgraders and call trees, without the web page.
struct FirefoxProfiler<'a> {
    script: &'a Path,
    sessions: &'a Path,
}

impl FirefoxProfiler<'_> {
    /// Has it read a file. It gives its own server half a second to start, which a busy machine may not have.
    fn load(&self, file: &Path) -> bool {
        for _ in 0..20 {
            let mut node = Command::new("node");
            node.arg(self.script).arg("load").arg(file).env("PROFILER_CLI_SESSION_DIR", self.sessions);
            let Ok(output) = node.output() else {
                skip("cannot run node (Debian: nodejs)");
                return false;
            };
            let errors = String::from_utf8_lossy(&output.stderr);
            if output.status.success() {
                return true;
            }
            let Some((_, slow)) = errors.split_once("did not become ready") else { panic!("{errors}") };
            let pid =
                slow.split_once("as pid ").and_then(|(_, pid)| pid.split([',', '.']).next()?.parse().ok());
            if let Some(pid) = pid {
                let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
            }
        }
        skip("the Firefox Profiler's server does not start within its half second on this machine");
        false
    }

    fn ask(&self, arguments: &[&str]) -> Option<String> {
        let mut node = Command::new("node");
        node.arg(self.script).args(arguments).env("PROFILER_CLI_SESSION_DIR", self.sessions);
        output(&mut node, "node (Debian: nodejs)")
    }

    fn json(&self, arguments: &[&str]) -> Value {
        let text = self.ask(&[arguments, &["--json"]].concat()).unwrap();
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{arguments:?}: {error}\n{text}"))
    }
}

impl Drop for FirefoxProfiler<'_> {
    fn drop(&mut self) {
        let _ = Command::new("node")
            .arg(self.script)
            .args(["stop", "--all"])
            .env("PROFILER_CLI_SESSION_DIR", self.sessions)
            .output();
    }
}

#[test]
fn the_firefox_profiler_opens_it() {
    let Some(script) = installed("node_modules/@firefox-devtools/profiler-cli/dist/profiler-cli.js") else {
        return;
    };
    let (made, file) = exported("opened-firefox", Format::Firefox, "p.json");
    // The name of a socket has room for a hundred bytes.
    let sessions = std::env::temp_dir().join(format!("selfwind-fx-{}", std::process::id()));
    let profiler = FirefoxProfiler { script: &script, sessions: &sessions };
    if !profiler.load(&file) {
        return;
    }
    let threads = profiler.json(&["thread", "list"]);
    let threads = threads["threads"].as_array().unwrap();
    let (mut total, mut functions) = (0, Vec::new());
    for thread in threads {
        let thread = thread["threadHandle"].as_str().unwrap();
        let samples = profiler.json(&["thread", "samples", "--include-idle", "--thread", thread]);
        total += samples["categoryBreakdown"]["totalSamples"].as_u64().unwrap();
        let list = profiler.json(&["thread", "functions", "--include-idle", "--thread", thread]);
        let list = list["functions"].as_array().unwrap();
        functions.extend(list.iter().map(|function| function["name"].as_str().unwrap().to_owned()));
    }
    assert_eq!(total, made.weight);
    for name in ["checksum", "stir", "twice", "main"] {
        assert!(functions.iter().any(|function| function.contains(name)), "{name} in {functions:?}");
    }
    let lost = profiler.json(&["profile", "markers", "--limit", "9"]).to_string();
    assert!(lost.contains("Lost samples"), "{lost}");
    drop(profiler);
    let _ = std::fs::remove_dir_all(sessions);
}

#[test]
fn speedscope_opens_it() {
    let Some(page) = installed("node_modules/speedscope/dist/release/index.html") else { return };
    let (made, file) = exported("opened-speedscope", Format::Speedscope, "p.speedscope.json");
    // As its own command line does: a script that hands the file over.
    let script = "const fs = require('fs'); const file = process.argv[1]; \
        const bytes = JSON.stringify(fs.readFileSync(file).toString('base64')); \
        fs.writeFileSync(file + '.js', `speedscope.loadFileFromBase64('p.speedscope.json', ${bytes})`)";
    if node(&["-e", script], &file).is_none() {
        return;
    }
    let url = format!("file://{}#view=sandwich&localProfilePath={}.js", page.display(), file.display());
    let Some(dom) = chromium(&url, (1200, 900), None) else { return };
    assert!(!dom.contains("Something went wrong"), "{dom}");
    // The heaviest thread of so many, by the name it has in the file.
    let document: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    let profiles = document["profiles"].as_array().unwrap();
    let sum: u64 = profiles.iter().map(|profile| profile["endValue"].as_u64().unwrap()).sum();
    assert_eq!(sum, made.weight);
    let active = &profiles[document["activeProfileIndex"].as_u64().unwrap() as usize];
    let name = active["name"].as_str().unwrap();
    assert!(dom.contains(&format!("/{})", profiles.len())) && dom.contains(name), "{name}: {dom}");
    for name in ["checksum", "stir", "twice"] {
        assert!(dom.contains(name), "{name} is not shown:\n{dom}");
    }
}

#[test]
fn a_pprof_library_decodes_it() {
    let Some(modules) = installed("node_modules/pprof-format") else { return };
    let (made, file) = exported("opened-pprof", Format::Pprof, "p.pb.gz");
    let script = format!(
        "const {{ Profile }} = require({:?}); \
        const bytes = require('zlib').gunzipSync(require('fs').readFileSync(process.argv[1])); \
        const profile = Profile.decode(bytes); const text = id => profile.stringTable.strings[Number(id)]; \
        const sum = profile.sample.reduce((sum, sample) => sum + Number(sample.value[0]), 0); \
        console.log(sum, text(profile.sampleType[0].type), profile.function.map(f => text(f.name)).join(','))",
        modules.display().to_string()
    );
    let Some(answer) = node(&["-e", &script], &file) else { return };
    let mut parts = answer.split_whitespace();
    assert_eq!(parts.next(), Some(&*made.weight.to_string()), "{answer}");
    assert_eq!(parts.next(), Some("samples"));
    assert!(["checksum", "stir", "twice"].iter().all(|name| answer.contains(name)), "{answer}");
}

#[test]
fn a_browser_draws_the_flame_graph() {
    let (made, file) = exported("opened-svg", Format::Flamegraph, "p.svg");
    let url = format!("file://{}", file.display());
    let Some(dom) = chromium(&url, (1200, 900), None) else { return };
    // Its script has run: names are cut to what fits their boxes.
    assert!(dom.contains(&format!("<title>all ({} periods of CPU time, 100%)", made.weight)), "{dom}");
    assert!(dom.contains(">checksum </text>"), "the widest frame has its name:\n{dom}");
    let picture = file.with_extension("png");
    let _ = std::fs::remove_file(&picture);
    chromium(&url, (1200, 900), Some(&picture));
    let bytes = std::fs::read(&picture).unwrap();
    assert!(bytes.starts_with(b"\x89PNG") && bytes.len() > 10_000, "{} bytes: an empty page", bytes.len());
}
