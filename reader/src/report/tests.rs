//! What a report says and how wide it is, on a made-up profile.

use selfwind_profile::profile::{Profile, fixture, load};
use selfwind_profile::profile_file::{Event, SessionInfo};
use selfwind_profile::selection::{Filters, Unit};
use selfwind_profile::symbolize::SymbolSources;

use super::options::{Rows, Sort, View};
use super::*;
use regex_lite::Regex;

const PIPE: Screen = Screen { width: 100, height: None, colour: false };

fn text(profile: &Profile, view: View, limit: Option<usize>, screen: Screen) -> String {
    shown(profile, &ReportOptions { view, limit, ..ReportOptions::default() }, screen)
}

fn shown(profile: &Profile, options: &ReportOptions, screen: Screen) -> String {
    text::render(profile, "p.data", options, screen)
}

#[test]
fn both() {
    let expected = "\
p.data: app --fast
9 samples  weight 20 (0.20 s CPU)  2.50 s  lost 1  truncated 22.2%  3 threads  2 processes  100 Hz

   SELF   TOTAL  FUNCTION                  MODULE
  35.0%   60.0%  app::parse                app
  20.0%   20.0%  [unknown]
  20.0%   20.0%  new_plugin                libnew.so
  10.0%   10.0%  old_plugin                libold.so
  10.0%   10.0%  space::foo(int)           app
   5.0%   20.0%  worker;loop               app
          85.0%  main                      app
          80.0%  _start                    app
          15.0%  [truncated: no-cfi]
           5.0%  [truncated: depth-limit]

  TOTAL    SELF  CALLS, from the root
  80.0%          _start > main
  45.0%   35.0%  ├ app::parse
  10.0%   10.0%  │ └ space::foo(int)
  20.0%   20.0%  ├ new_plugin
  10.0%   10.0%  ├ old_plugin
   5.0%    5.0%  └ [unknown]
  15.0%   15.0%  [truncated: no-cfi] > worker;loop > app::parse > [unknown]
   5.0%    5.0%  [truncated: depth-limit] > main ? > worker;loop ↻

note: frames found by frame pointer: 1 (3.45%), guessed (marked ?): 1 (3.45%)
note: truncated stacks: 1 depth-limit (deeper than --max-stack), 1 no-cfi (code without call frame
  information)
note: lost samples: 1 unread; `selfwind stats` shows more
";
    assert_eq!(text(&fixture::loaded("both"), View::Both, None, PIPE), expected);
}

#[test]
fn children_sorts_by_total() {
    let text = text(&fixture::loaded("children"), View::Children, Some(3), PIPE);
    let expected = "
   SELF   TOTAL  FUNCTION    MODULE
          85.0%  main        app
          80.0%  _start      app
  35.0%   60.0%  app::parse  app
… 7 more functions with 65.0% of self; --limit 0 shows all
";
    assert!(text.contains(expected), "{text}");
}

#[test]
fn no_children_shows_callers() {
    let text = text(&fixture::loaded("no-children"), View::NoChildren, Some(4), PIPE);
    let expected = "
   SELF  FUNCTION    MODULE
  35.0%  app::parse  app
  20.0%  [unknown]
  20.0%  new_plugin  libnew.so
  10.0%  old_plugin  libold.so
… 2 more functions with 15.0% of self; --limit 0 shows all

  TOTAL  CALLERS, from the hottest function (… 4 more lines; --limit 0)
  35.0%  app::parse > main > _start
  20.0%  [unknown]
  15.0%  └ app::parse > worker;loop > [truncated: no-cfi]
  20.0%  new_plugin > main > _start
";
    assert!(text.contains(expected), "{text}");
}

#[test]
fn fits_every_terminal() {
    let profile = fixture::loaded("terminals");
    for (width, height) in [(40, 10), (80, 24), (80, 50), (200, 60)] {
        for view in [View::Both, View::Children, View::NoChildren] {
            let screen = Screen { width, height: Some(height), colour: false };
            let text = text(&profile, view, None, screen);
            let widest = text.lines().map(|line| line.chars().count()).max().unwrap();
            assert!(widest <= width, "{widest} > {width}:\n{text}");
            // The smallest screens scroll: five rows of each part are always shown.
            assert!(height < 24 || text.lines().count() < height, "{height}:\n{text}");
        }
    }
}

#[test]
fn colours_change_nothing_but_colours() {
    let profile = fixture::loaded("colours");
    let plain = text(&profile, View::Both, None, PIPE);
    let colourful = text(&profile, View::Both, None, Screen { colour: true, ..PIPE });
    assert_ne!(plain, colourful);
    let mut stripped = String::new();
    let mut rest = colourful.as_str();
    while let Some((before, after)) = rest.split_once('\x1b') {
        stripped.push_str(before);
        rest = after.split_once('m').unwrap().1;
    }
    stripped.push_str(rest);
    let trimmed = |text: &str| text.lines().map(str::trim_end).collect::<Vec<_>>().join("\n");
    assert_eq!(trimmed(&plain), trimmed(&stripped));
}

#[test]
fn json_adds_up() {
    let profile = fixture::loaded("json");
    let mut out = Vec::new();
    let options = ReportOptions::default();
    let selection = Selection::new(&profile, options.unit, Heading::Programs, &options.filters);
    json::write(&selection, &options, &mut out).unwrap();
    let report: serde_json::Value = serde_json::from_slice(&out).unwrap();
    assert_eq!((report["samples"].as_u64(), report["weight"].as_u64()), (Some(9), Some(20)));
    assert_eq!((report["lost"].as_u64(), report["truncated"].as_u64()), (Some(1), Some(2)));
    assert_eq!(report["frames"]["guess"], 1);
    let sum = |list: &str, key: &str| -> u64 {
        report[list].as_array().unwrap().iter().map(|row| row[key].as_u64().unwrap()).sum()
    };
    assert_eq!(sum("functions", "self"), 20);
    assert_eq!(sum("tree", "self"), 20);
    assert_eq!((sum("by_thread", "weight"), sum("by_thread", "samples")), (20, 9));
    let tree = report["tree"].as_array().unwrap();
    let roots = tree.iter().filter(|node| node["parent"].is_null());
    assert_eq!(roots.map(|node| node["total"].as_u64().unwrap()).sum::<u64>(), 20);
    for (index, node) in tree.iter().enumerate() {
        if let Some(parent) = node["parent"].as_u64() {
            assert!((parent as usize) < index, "parents come first");
        }
    }
}

#[test]
fn json_limits_its_tree_to_the_heaviest_nodes() {
    let profile = fixture::loaded("json-limit");
    let write = |limit| {
        let options = ReportOptions { limit, ..ReportOptions::default() };
        let selection = Selection::new(&profile, options.unit, Heading::Programs, &options.filters);
        let mut out = Vec::new();
        json::write(&selection, &options, &mut out).unwrap();
        serde_json::from_slice::<serde_json::Value>(&out).unwrap()["tree"].as_array().unwrap().clone()
    };
    let (all, some) = (write(None), write(Some(4)));
    assert_eq!(write(Some(0)), all);
    let totals = |tree: &[serde_json::Value]| {
        let mut totals: Vec<u64> = tree.iter().map(|node| node["total"].as_u64().unwrap()).collect();
        totals.sort_by_key(|&total| std::cmp::Reverse(total));
        totals
    };
    assert!(all.len() > 4);
    assert_eq!(totals(&some), totals(&all)[..4]);
    // Each is where it was, under the same ones.
    let path = |tree: &[serde_json::Value], index: usize| {
        let mut names = Vec::new();
        let mut at = Some(index as u64);
        while let Some(index) = at {
            let node = &tree[index as usize];
            names.push(node.get("function").or(node.get("process")).unwrap().to_string());
            at = node["parent"].as_u64();
        }
        names
    };
    let paths: Vec<_> = (0..all.len()).map(|index| path(&all, index)).collect();
    assert!((0..some.len()).all(|index| paths.contains(&path(&some, index))));
}

#[test]
fn an_empty_profile_says_so() {
    let directory = fixture::directory("empty-report");
    let file = directory.join("p.data");
    fixture::write(&file, &[]);
    let profile = load(&file, &SymbolSources::none()).unwrap();
    let text = text(&profile, View::Both, None, PIPE);
    assert!(text.contains("No samples:") && text.contains("recording was interrupted"), "{text}");
    std::fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn rows_can_be_threads_processes_and_modules() {
    let profile = fixture::loaded("rows");
    let of = |options: ReportOptions| shown(&profile, &ReportOptions { flat: true, ..options }, PIPE);
    let threads = of(ReportOptions { rows: Rows::Threads, ..ReportOptions::default() });
    let expected = "
  TOTAL  THREAD      PROCESS
  70.0%  app 100     app 100
  20.0%  worker 101  app 100
  10.0%  app 200     app 200
";
    assert!(threads.contains(expected), "{threads}");
    let processes = of(ReportOptions { rows: Rows::Processes, ..ReportOptions::default() });
    assert!(processes.contains("\n  90.0%  app 100\n  10.0%  app 200\n"), "{processes}");
    let modules = of(ReportOptions { unit: Unit::Module, ..ReportOptions::default() });
    assert!(modules.contains("  50.0%  100.0%  app\n"), "{modules}");
    let tree = shown(&profile, &ReportOptions { rows: Rows::Threads, ..ReportOptions::default() }, PIPE);
    assert!(tree.contains("\n  70.0%          app 100 > _start > main\n"), "{tree}");
}

#[test]
fn the_table_is_sorted_as_asked() {
    let profile = fixture::loaded("sorted");
    let first = |sort| {
        let options = ReportOptions { sort: Some(sort), flat: true, ..ReportOptions::default() };
        let text = shown(&profile, &options, PIPE);
        assert!(!text.contains("CALLS"), "{text}");
        let row = text.lines().skip_while(|line| !line.contains("FUNCTION")).nth(1).unwrap().to_owned();
        row.split("  ").filter(|part| !part.trim().is_empty()).nth(1).unwrap().trim().to_owned()
    };
    assert_eq!(first(Sort::Total), "main");
    let options = ReportOptions { sort: Some(Sort::Name), flat: true, ..ReportOptions::default() };
    let text = shown(&profile, &options, PIPE);
    let names = ["[truncated: depth-limit]", "_start", "app::parse", "main", "new_plugin", "worker;loop"];
    let offsets: Vec<usize> = names.iter().map(|name| text.find(name).unwrap()).collect();
    assert!(offsets.is_sorted(), "{text}");
}

#[test]
fn filters_are_named_and_what_matches_nothing_is_said() {
    let profile = fixture::loaded("filters");
    let of = |pattern: &str| {
        let filters = Filters { symbol: Some(Regex::new(pattern).unwrap()), ..Filters::default() };
        shown(&profile, &ReportOptions { filters, ..ReportOptions::default() }, PIPE)
    };
    let some = of("foo");
    assert!(some.contains("showing 10.0% of it: --symbol foo\n"), "{some}");
    assert!(some.contains(" 100.0%  100.0%  space::foo(int)"), "{some}");
    assert!(of("nowhere").contains("Nothing matches --symbol nowhere;"), "{}", of("nowhere"));
}

#[test]
fn a_recording_of_a_running_process_shows_its_own_name_and_rate() {
    let directory = fixture::directory("running");
    let file = directory.join("p.data");
    let mut events = fixture::events(&directory);
    // What the recorder was told is not what the process does.
    events[0] = Event::Session(SessionInfo { frequency: 999, ..SessionInfo::default() });
    fixture::write(&file, &events);
    let profile = load(&file, &SymbolSources::none()).unwrap();
    let text = text(&profile, View::Both, None, PIPE);
    assert!(text.starts_with("p.data: app (pid 100), app (pid 200)\n"), "{text}");
    assert!(text.contains(" 100 Hz\n") && !text.contains("999"), "{text}");
    std::fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn what_is_no_cpu_time_is_not_called_so() {
    let directory = fixture::directory("events");
    let file = directory.join("p.data");
    for (source, period_ns, words) in [
        ("perf:page-faults", 0, "weight 20 (20 page-faults)"),
        ("perf:cs@10,cpu-migrations", 0, "weight 20 (200 cs)"),
        ("offcpu", 1000, "weight 20 (20 us off the CPU)"),
    ] {
        let mut events = fixture::events(&directory);
        for event in &mut events {
            match event {
                Event::Session(session) => (session.source, session.frequency) = (source.into(), 0),
                Event::Process(info) => (info.source, info.period_ns) = ("perf".into(), period_ns),
                _ => {}
            }
        }
        fixture::write(&file, &events);
        let profile = load(&file, &SymbolSources::none()).unwrap();
        let text = text(&profile, View::Both, None, PIPE);
        assert!(
            text.contains(words) && !text.contains(" Hz") && !text.contains("s CPU)"),
            "{source}: {text}"
        );
    }
    std::fs::remove_dir_all(&directory).unwrap();
}
