//! Totals, order and names of the outputs, on a made-up profile.

use selfwind_tests::random::Random;

use super::*;
use crate::profile::fixture;

fn loaded(test: &str) -> Profile {
    let directory = fixture::directory(test);
    let file = directory.join("p.data");
    fixture::write(&file, &fixture::events(&directory));
    let profile = profile::load(&file, &SymbolSources::none()).unwrap();
    std::fs::remove_dir_all(&directory).unwrap();
    profile
}

fn text(profile: &Profile, format: Format, grouping: Grouping) -> String {
    let mut out = Vec::new();
    write(format, grouping, profile, &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

fn folded_total(text: &str) -> u64 {
    text.lines().map(|line| line.rsplit_once(' ').unwrap().1.parse::<u64>().unwrap()).sum()
}

#[test]
fn folded() {
    let profile = loaded("folded");
    let plain = text(&profile, Format::Folded, Grouping::None);
    let expected = "\
[truncated: depth-limit];main;worker:loop;worker:loop 1
[truncated: no-cfi];worker:loop;app::parse;[unknown] 3
_start;main;[unknown] 1
_start;main;app::parse 7
_start;main;app::parse;space::foo(int) 2
_start;main;new_plugin 4
_start;main;old_plugin 2
";
    assert_eq!(plain, expected);
    for grouping in [Grouping::None, Grouping::Process, Grouping::Thread] {
        assert_eq!(folded_total(&text(&profile, Format::Folded, grouping)), profile.totals.weight);
    }
    let by_process = text(&profile, Format::Folded, Grouping::Process);
    assert!(by_process.contains("app-200;_start;main;app::parse 2\n"), "{by_process}");
    let by_thread = text(&profile, Format::Folded, Grouping::Thread);
    assert!(by_thread.contains("worker-100/101;[truncated: depth-limit];main;"), "{by_thread}");
}

#[test]
fn json_lines() {
    let profile = loaded("jsonl");
    let text = text(&profile, Format::Jsonl, Grouping::None);
    let lines: Vec<serde_json::Value> =
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let weight: u64 = lines.iter().map(|line| line["weight"].as_u64().unwrap()).sum();
    assert_eq!(weight, profile.totals.weight);
    let truncated = lines.iter().find(|line| line["end"] == "no-cfi").unwrap();
    assert_eq!((truncated["tid"].as_u64(), truncated["thread"].as_str()), (Some(101), Some("worker")));
    let frames = truncated["frames"].as_array().unwrap();
    assert_eq!(frames[0]["function"], "[unknown]");
    assert_eq!(frames[0]["address"], "0x12345678");
    assert_eq!(frames[1]["found_by"], "frame-pointer");
    assert_eq!((&frames[2]["module"], &frames[2]["address"]), (&"app".into(), &"0x51f".into()));
}

#[test]
fn flame_graph_of_no_samples_says_so() {
    let profile = profile::of_events(Vec::new(), &SymbolSources::none());
    let svg = text(&profile, Format::Flamegraph, Grouping::None);
    assert!(svg.starts_with("<?xml") && svg.trim_end().ends_with("</svg>"));
    assert!(svg.contains(">The profile has no samples</text>"), "{svg}");
}

#[test]
fn flame_graph_shows_every_function() {
    let profile = loaded("svg");
    let svg = text(&profile, Format::Flamegraph, Grouping::None);
    assert!(svg.starts_with("<?xml") && svg.trim_end().ends_with("</svg>"));
    // Weight 20 of 10 ms each.
    let facts =
        ["0.20 s of CPU time", ", 9 samples", "red: program", "yellow: libraries", "_start (160 ms, 80.00%)"];
    for name in ["app::parse", "space::foo(int)", "[truncated: no-cfi]"].iter().chain(&facts) {
        assert!(svg.contains(name), "{name} is missing");
    }
    assert!(svg.contains("truncate_text_right = true"), "names are cut at their end");
    assert_eq!(svg, text(&profile, Format::Flamegraph, Grouping::None), "equal profiles, equal bytes");
}

#[test]
fn pprof_has_the_names_of_the_linker() {
    let mut out = Vec::new();
    write(Format::Pprof, Grouping::None, &loaded("pprof"), &mut out).unwrap();
    let mut bytes = Vec::new();
    std::io::Read::read_to_end(&mut flate2::read::GzDecoder::new(&*out), &mut bytes).unwrap();
    for name in ["app::parse", "_ZN3app5parse17h0123456789abcdefE", "space::foo(int)", "_ZN5space3fooEi"] {
        let found = bytes.windows(name.len()).any(|window| window == name.as_bytes());
        assert!(found, "{name} is missing");
    }
}

#[test]
fn formats_by_name_and_extension() {
    for format in Format::ALL {
        assert_eq!(format.name().parse(), Ok(format));
    }
    assert_eq!(Format::from_path(Path::new("/tmp/a.svg")), Some(Format::Flamegraph));
    assert_eq!(Format::from_path(Path::new("a.folded")), Some(Format::Folded));
    assert_eq!(Format::from_path(Path::new("selfwind.data")), None);
    assert!("svgg".parse::<Format>().unwrap_err().contains("folded, flamegraph, jsonl"));
}

/// Damage under a correct checksum, as a broken or malicious recorder would write it: every readable event passes
/// through all later stages, and nothing panics.
#[test]
fn no_profile_breaks_an_output() {
    let directory = fixture::directory("broken");
    let file = directory.join("p.data");
    fixture::write(&file, &fixture::events(&directory));
    let intact = std::fs::read(&file).unwrap();
    let (head, payload) = intact.split_at(16 + 12);
    let long = std::env::var_os("SELFWIND_LONG").is_some();
    let rounds = if long { 20_000 } else { 300 };
    let mut random = Random::new(0x5eed_0bad_cafe_f00d);
    let mut next = move |below| random.below(below);
    let sources = SymbolSources::none();
    let (mut whole, mut partial) = (0, 0);
    for round in 0..rounds {
        let mut payload = payload.to_vec();
        for _ in 0..1 + next(3) {
            let at = next(payload.len());
            match next(3) {
                0 => payload[at] = next(256) as u8,
                1 => payload[at] ^= 1 << next(8),
                _ => payload[at] = [0, 1, 0x7f, 0x80, 0xff][next(5)],
            }
        }
        let mut bytes = head[..16].to_vec();
        bytes.extend_from_slice(&head[16..24]);
        let checksum = crc32fast::hash(&[&head[16..24], &payload].concat());
        bytes.extend_from_slice(&checksum.to_le_bytes());
        bytes.extend_from_slice(&payload);
        std::fs::write(&file, bytes).unwrap();
        for format in Format::ALL {
            match export_grouped(format, Grouping::None, &file, &sources, &mut std::io::sink()) {
                Ok(_) => whole += 1,
                // One line that names the file or the cause.
                Err(error) => {
                    partial += 1;
                    assert!(
                        !format!("{error:#}").contains('\n'),
                        "round {round}, {}: {error:#}",
                        format.name()
                    );
                }
            }
        }
    }
    assert!(whole > rounds && partial > 0, "{whole} whole, {partial} not");
    std::fs::remove_dir_all(&directory).unwrap();
}
