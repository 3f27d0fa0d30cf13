//! What a report says and how wide it is, on a made-up profile.

use super::*;
use crate::profile::{Profile, fixture, load};

fn loaded(test: &str) -> Profile {
    let directory = fixture::directory(test);
    let file = directory.join("p.data");
    fixture::write(&file, &fixture::events(&directory));
    let profile = load(&file, &DebugDirectories(Vec::new())).unwrap();
    std::fs::remove_dir_all(&directory).unwrap();
    profile
}

const PIPE: Screen = Screen { width: 100, height: None, colour: false };

fn text(profile: &Profile, view: View, limit: Option<usize>, screen: Screen) -> String {
    let options = ReportOptions { view, limit, ..ReportOptions::default() };
    text::render(profile, "p.data", &options, screen)
}

#[test]
fn both() {
    let expected = "\
p.data: app --fast
9 samples  weight 20  2.50 s  lost 1  truncated 22.2%  3 threads  2 processes  99 Hz

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
   5.0%    5.0%  [truncated: depth-limit] > main > worker;loop > worker;loop

note: frames not from call frame information: 1 by frame pointer (3.45%), 1 guessed (3.45%)
";
    assert_eq!(text(&loaded("both"), View::Both, None, PIPE), expected);
}

#[test]
fn children_sorts_by_total() {
    let text = text(&loaded("children"), View::Children, Some(3), PIPE);
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
    let text = text(&loaded("no-children"), View::NoChildren, Some(4), PIPE);
    let expected = "
   SELF  FUNCTION    MODULE
  35.0%  app::parse  app
  20.0%  [unknown]
  20.0%  new_plugin  libnew.so
  10.0%  old_plugin  libold.so
… 2 more functions with 15.0% of self; --limit 0 shows all

  TOTAL  CALLERS, from the hottest function
  35.0%  app::parse > main > _start
  20.0%  [unknown]
  15.0%  └ app::parse > worker;loop > [truncated: no-cfi]
  20.0%  new_plugin > main > _start
";
    assert!(text.contains(expected), "{text}");
}

#[test]
fn fits_every_terminal() {
    let profile = loaded("terminals");
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
    let profile = loaded("colours");
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
    let profile = loaded("json");
    let mut out = Vec::new();
    json::write(&profile, &ReportOptions::default(), &mut out).unwrap();
    let report: serde_json::Value = serde_json::from_slice(&out).unwrap();
    assert_eq!((report["samples"].as_u64(), report["weight"].as_u64()), (Some(9), Some(20)));
    assert_eq!((report["lost"].as_u64(), report["truncated"].as_u64()), (Some(1), Some(2)));
    assert_eq!(report["frames"]["guess"], 1);
    let sum = |list: &str, key: &str| -> u64 {
        report[list].as_array().unwrap().iter().map(|row| row[key].as_u64().unwrap()).sum()
    };
    assert_eq!(sum("functions", "self"), 20);
    assert_eq!(sum("tree", "self"), 20);
    let tree = report["tree"].as_array().unwrap();
    let roots = tree.iter().filter(|node| node["parent"].is_null());
    assert_eq!(roots.map(|node| node["total"].as_u64().unwrap()).sum::<u64>(), 20);
    for (place, node) in tree.iter().enumerate() {
        if let Some(parent) = node["parent"].as_u64() {
            assert!((parent as usize) < place, "parents come first");
        }
    }
}

#[test]
fn an_empty_profile_says_so() {
    let directory = fixture::directory("empty-report");
    let file = directory.join("p.data");
    fixture::write(&file, &[]);
    let profile = load(&file, &DebugDirectories(Vec::new())).unwrap();
    let text = text(&profile, View::Both, None, PIPE);
    assert!(text.contains("No samples:") && text.contains("did not end in order"), "{text}");
    std::fs::remove_dir_all(&directory).unwrap();
}
