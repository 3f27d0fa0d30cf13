//! Comparisons of made-up profiles.

use std::path::PathBuf;

use selfwind_profile::profile::fixture;
use selfwind_profile::profile_file::{Event, ProcessInfo, SessionInfo};
use selfwind_profile::selection::{Filters, Unit};
use selfwind_profile::symbolize::SymbolSources;
use unwind::End;

use super::options::Sort;
use super::*;

const PIPE: Screen = Screen { width: 100, height: None, colour: false };

/// A profile of the program `app` in which the functions `hot`, `cold` and `steady`, called by `main`, have this many samples.
fn made(directory: &Path, name: &str, samples: [u32; 3]) -> PathBuf {
    made_of(directory, "app", name, samples, "cpu")
}

fn made_of(directory: &Path, app: &str, name: &str, samples: [u32; 3], source: &str) -> PathBuf {
    let app = directory.join(app);
    fixture::binary(&app, &["main", "hot", "cold", "steady"]);
    let session = SessionInfo { source: source.into(), ..SessionInfo::default() };
    let process =
        ProcessInfo { pid: 7, period_ns: 10_000_000, source: source.into(), ..ProcessInfo::default() };
    let mut events: Vec<Event> =
        vec![Event::Session(session), Event::Process(process), fixture::module(0, 1, &app, fixture::BASE, 0)];
    let mut ns = 10;
    for (function, count) in samples.into_iter().enumerate() {
        for _ in 0..count {
            ns += 1;
            let frames = vec![fixture::leaf(function as u64 + 1), fixture::caller(0)];
            events.push(fixture::sample(0, 1, ns, 2, End::Root, frames));
        }
    }
    let path = directory.join(name);
    fixture::write(&path, &events);
    path
}

fn options(form: Form) -> DiffOptions {
    DiffOptions {
        form,
        sort: Sort::Own,
        unit: Unit::Function,
        filters: Filters::default(),
        threshold: None,
        limit: None,
        gates: Vec::new(),
        output: None,
        event: None,
        sources: SymbolSources::none(),
    }
}

fn compared(a: &Path, b: &Path, options: &DiffOptions, screen: Screen) -> String {
    let mut out = Vec::new();
    run(a, b, options, screen, &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

#[test]
fn shares_are_compared_and_changes_marked() {
    let directory = fixture::directory("diff-shares");
    let a = made(&directory, "a.data", [100, 100, 200]);
    // Twice as long, and `hot` takes what `cold` took.
    let b = made(&directory, "b.data", [380, 20, 400]);
    let text = compared(&a, &b, &options(Form::Text), PIPE);
    let rows: Vec<&str> = text.lines().skip_while(|line| !line.contains("CHANGE")).collect();
    let expected = [
        " SELF A  SELF B  CHANGE     TOTAL  FUNCTION  MODULE",
        "  25.0%    2.5%   -22.5%*   -22.5%  cold      app",
        "  25.0%   47.5%   +22.5%*   +22.5%  hot       app",
        "… 2 more functions, 2 in all marked * (more than chance); --limit 0 --threshold 0 shows all",
    ];
    assert_eq!(rows, expected, "{text}");
    assert!(text.contains("400 samples  weight 800"), "{text}");
    std::fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn a_program_under_another_name_is_the_same() {
    let directory = fixture::directory("diff-renamed");
    let a = made_of(&directory, "app-1.0", "a.data", [100, 100, 200], "cpu");
    let b = made_of(&directory, "app-1.1", "b.data", [380, 20, 400], "cpu");
    let text = compared(&a, &b, &options(Form::Text), PIPE);
    assert!(text.contains("  25.0%    2.5%   -22.5%*   -22.5%  cold"), "{text}");
    assert!(!text.contains("100.0%") && text.contains("2 more functions"), "{text}");
    // 400 periods of 10 ms against 800.
    assert!(text.contains("B used 2.00 times the CPU time of A"), "{text}");
    let json: serde_json::Value =
        serde_json::from_str(&compared(&a, &b, &options(Form::Json), PIPE)).unwrap();
    assert_eq!(json["functions"].as_array().unwrap().len(), 4);
    assert_eq!((json["ratio"].as_f64(), json["a"]["amount"].as_f64()), (Some(2.0), Some(8.0)));
    std::fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn time_on_and_off_the_processor_are_not_compared() {
    let directory = fixture::directory("diff-measures");
    let a = made(&directory, "a.data", [1, 1, 1]);
    let b = made_of(&directory, "app", "b.data", [1, 1, 1], "offcpu");
    let error = run(&a, &b, &options(Form::Text), PIPE, &mut Vec::new()).unwrap_err().to_string();
    assert!(error.contains("counts CPU time") && error.contains("counts offcpu"), "{error}");
    std::fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn gates_fail_on_what_has_grown() {
    let directory = fixture::directory("diff-gates");
    let a = made(&directory, "a.data", [100, 100, 200]);
    let b = made(&directory, "b.data", [300, 100, 200]);
    let failures = |gate: &str| {
        let options = DiffOptions { gates: vec![gate.parse().unwrap()], ..options(Form::Text) };
        run(&a, &b, &options, PIPE, &mut Vec::new()).map(|failures| failures.join(" "))
    };
    assert!(failures("total>5%").unwrap().contains("CPU time grew by 50.0%"));
    assert_eq!(failures("total>50%").unwrap(), "");
    assert!(failures("self(^hot$)>20%").unwrap().contains("the share of hot grew by 25.0 points"));
    assert_eq!(failures("self(^hot$)>26%").unwrap(), "");
    assert_eq!(failures("self(cold|steady)>0%").unwrap(), "", "they have less");
    assert!(failures("total(nobody)>1%").unwrap_err().to_string().contains("neither profile"));
    std::fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn one_long_wait_is_one_observation() {
    let directory = fixture::directory("diff-kish");
    // Two waits of a minute against two of a second more, among many short ones elsewhere.
    let made = |name: &str, long: u32| {
        let app = directory.join("app");
        fixture::binary(&app, &["main", "hot", "cold", "steady"]);
        let mut events = vec![fixture::module(0, 1, &app, fixture::BASE, 0)];
        let mut wait = |function, weight, count: u64| {
            for ns in 0..count {
                let frames = vec![fixture::leaf(function), fixture::caller(0)];
                events.push(fixture::sample(0, 1, ns, weight, End::Root, frames));
            }
        };
        wait(1, long, 1);
        wait(2, 1000, 2000);
        let path = directory.join(name);
        fixture::write(&path, &events);
        path
    };
    let (a, b) = (made("a.data", 500_000), made("b.data", 1_500_000));
    let text = compared(&a, &b, &options(Form::Text), PIPE);
    assert!(text.contains("+22.9%") && !text.contains("%*"), "{text}");
    std::fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn chance_is_not_marked() {
    let directory = fixture::directory("diff-chance");
    let a = made(&directory, "a.data", [50, 52, 100]);
    let b = made(&directory, "b.data", [55, 47, 98]);
    let text = compared(&a, &b, &options(Form::Text), PIPE);
    assert!(text.contains("+2.7%") && !text.contains("%*"), "{text}");
    std::fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn json_and_folded_add_up() {
    let directory = fixture::directory("diff-json");
    let a = made(&directory, "a.data", [33, 33, 34]);
    let b = made(&directory, "b.data", [1, 0, 6]);
    let json: serde_json::Value =
        serde_json::from_str(&compared(&a, &b, &options(Form::Json), PIPE)).unwrap();
    let functions = json["functions"].as_array().unwrap();
    let sum = |side: &str| functions.iter().map(|f| f[side]["self"].as_u64().unwrap()).sum::<u64>();
    assert_eq!((sum("a"), sum("b")), (200, 14));
    let change: f64 = functions.iter().map(|f| f["self_change"].as_f64().unwrap()).sum();
    assert!(change.abs() < 1e-9, "{change}");
    assert_eq!(json["b"]["samples"], 7);

    let folded = compared(&a, &b, &options(Form::Folded), PIPE);
    let mut sums = (0, 0);
    for line in folded.lines() {
        let mut numbers = line.rsplitn(3, ' ').map(str::to_owned);
        let (in_b, in_a): (u64, u64) =
            (numbers.next().unwrap().parse().unwrap(), numbers.next().unwrap().parse().unwrap());
        sums = (sums.0 + in_a, sums.1 + in_b);
    }
    assert_eq!(sums, (14, 14), "{folded}");
    assert!(folded.contains("main;cold 5 0\n"), "{folded}");

    let svg = compared(&a, &b, &options(Form::Flamegraph), PIPE);
    assert!(svg.contains("<svg") && svg.contains("steady"), "{svg}");
    std::fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn fits_every_terminal_and_says_what_is_empty() {
    let directory = fixture::directory("diff-fits");
    let a = made(&directory, "a.data", [10, 20, 30]);
    let b = made(&directory, "b.data", [30, 20, 10]);
    for (width, height) in [(40, 24), (80, 24), (200, 60)] {
        let screen = Screen { width, height: Some(height), colour: false };
        let text = compared(&a, &b, &options(Form::Text), screen);
        assert!(text.lines().all(|line| line.chars().count() <= width.max(58)), "{text}");
        assert!(text.lines().count() < height, "{text}");
    }
    let empty = directory.join("empty.data");
    fixture::write(&empty, &[]);
    let error = run(&a, &empty, &options(Form::Text), PIPE, &mut Vec::new()).unwrap_err().to_string();
    assert!(error.contains("empty.data: it has no samples"), "{error}");
    std::fs::remove_dir_all(&directory).unwrap();
}
