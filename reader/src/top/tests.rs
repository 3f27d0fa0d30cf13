//! Tests the screen and its keys with made-up stacks and a terminal in memory.

use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use selfwind_profile::call_tree::Step;
use selfwind_profile::events::Events;
use selfwind_profile::profile_file::SessionInfo;

use super::draw::{Facts, draw};
use super::view::{Next, View};
use super::window::{Left, Name, Window};

fn window(stacks: &[(&str, u64)]) -> Window {
    let mut window = Window::new(30);
    for (stack, weight) in stacks {
        let label = |(index, text): (usize, &str)| Name {
            text: text.into(),
            module: if index == 0 { String::new() } else { "app".into() },
            program: index == 0,
        };
        let steps: Vec<Step> =
            stack.split(';').enumerate().map(|part| Step::certain(window.label(label(part)))).collect();
        window.add(1, &steps, 0, *weight);
    }
    window
}

fn sample_window() -> Window {
    window(&[
        ("app;main;parse", 50),
        ("app;main;parse;lex", 30),
        ("app;main;emit", 15),
        ("tool;main;scan_all_of_the_input_that_is_there", 5),
    ])
}

struct Session {
    view: View,
    window: Window,
    width: u16,
    height: u16,
}

impl Session {
    fn new(width: u16, height: u16) -> Self {
        let (mut view, window) = (View::new(), sample_window());
        view.refresh(&window);
        Self { view, window, width, height }
    }

    fn press(&mut self, keys: &[KeyCode]) -> Next {
        let mut next = Next::Stay;
        for &code in keys {
            next = self.view.key(KeyEvent::new(code, KeyModifiers::NONE), &self.window);
        }
        next
    }

    fn typed(&mut self, text: &str) {
        self.press(&text.chars().map(KeyCode::Char).collect::<Vec<_>>());
    }

    fn screen(&self) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(self.width, self.height)).unwrap();
        let facts = Facts { subject: "app --fast".into(), samples: 100, window: 30, ..Facts::default() };
        terminal.draw(|frame| draw(frame, &self.view, &self.window, &facts)).unwrap();
        let buffer = terminal.backend().buffer();
        let line = |y| (0..self.width).map(|x| buffer[(x, y)].symbol()).collect::<String>();
        (0..self.height).map(|y| line(y).trim_end().to_owned()).collect()
    }

    fn status(&self) -> String {
        self.screen()[usize::from(self.height) - 2].clone()
    }
}

#[test]
fn the_table_is_sorted_searched_and_zoomed() {
    let mut session = Session::new(80, 24);
    let screen = session.screen();
    assert!(screen[3].starts_with("  SELFv  TOTAL   FUNCTION"), "{screen:#?}");
    assert_eq!(screen[4].split_whitespace().collect::<Vec<_>>(), ["50.0%", "80.0%", "parse", "app"]);
    assert!(session.status().starts_with("self 50.0%  total 80.0%  parse  app"), "{}", session.status());
    session.press(&[KeyCode::Char('j')]);
    assert!(session.status().contains("  lex  app"));
    session.press(&[KeyCode::Char('G')]);
    assert!(session.status().contains("  main  app"), "{}", session.status());
    session.press(&[KeyCode::Char('s'), KeyCode::Char('g')]);
    assert!(session.status().contains("total 100.0%  main"), "{}", session.status());
    session.typed("/EMI");
    assert_eq!(session.screen()[2], "/EMI_");
    session.press(&[KeyCode::Esc]);
    session.typed("/scan");
    session.press(&[KeyCode::Enter]);
    assert!(session.status().contains("scan_all_of_the_input_that_is_there"));
    assert_eq!(session.screen()[2], "last 30 s, find: scan");
    session.typed("/sacn");
    session.press(&[KeyCode::Enter]);
    assert_eq!(session.screen()[2], "last 30 s, find: sacn: no match");
    session.press(&[KeyCode::Esc, KeyCode::Char('g'), KeyCode::Char('j'), KeyCode::Enter]);
    assert_eq!(session.screen()[2], "last 30 s, zoom: parse");
    let shares = session.screen()[4].split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(shares, ["62.5%", "100.0%", "parse", "app"], "shares are those of the zoom");
    session.press(&[KeyCode::Esc]);
    assert_eq!(session.screen()[2], "last 30 s");
    assert_eq!(session.press(&[KeyCode::Char('q')]), Next::Quit);
}

#[test]
fn the_flame_graph_is_walked() {
    let mut session = Session::new(80, 24);
    session.press(&[KeyCode::Tab]);
    let screen = session.screen();
    assert!(screen[3].starts_with("▏all") && screen[4].starts_with("▏app"), "{screen:#?}");
    assert!(screen[6].contains("▏parse") && screen[6].contains("▏emit"), "{screen:#?}");
    session.typed("jjjj");
    assert!(session.status().contains("self 30.0%  total 30.0%  lex"), "{}", session.status());
    session.typed("kl");
    assert!(session.status().contains("  emit"), "{}", session.status());
    session.press(&[KeyCode::Enter]);
    assert!(session.screen()[2].ends_with("zoom: emit") && session.screen()[4].starts_with("▏emit"));
    session.press(&[KeyCode::Esc]);
    session.typed("/ma");
    session.press(&[KeyCode::Enter]);
    let first = session.status();
    session.typed("n");
    assert!(first.contains("95.0%  main") && session.status().contains("5.0%  main"), "{first}");
    session.typed("N");
    assert_eq!(session.status(), first);
}

#[test]
fn each_event_has_its_picture() {
    let mut session = Session::new(80, 24);
    session.typed("e");
    assert!(session.status().contains("parse"), "with one event there is no other");
    let info = SessionInfo { source: "cpu,alloc".into(), frequency: 99, ..SessionInfo::default() };
    session.view.measures = Events::new(&info, [("cpu", 10_000_000)].into_iter()).measures().to_vec();
    let held = [Step::certain(session.window.label(Name { text: "hold".into(), ..Name::default() }))];
    session.window.hold((1, 1), &held, 2, 4096);
    session.window.keep(|_| Some(Left::Blocks(1)));
    assert!(session.screen()[2].starts_with("100 periods of CPU time, last 30 s"), "{:#?}", session.screen());
    session.typed("eeee");
    assert_eq!(session.screen()[2], "4,096 bytes, inuse_space, now");
    assert!(session.status().starts_with("self 100.0%  total 100.0%  hold"), "{}", session.status());
    session.typed("e");
    assert!(session.status().contains("parse"));
}

#[test]
fn a_frozen_picture_stays() {
    let mut session = Session::new(80, 24);
    session.typed("z");
    session.window = window(&[("app;main;later", 1000)]);
    session.typed("g");
    assert!(session.screen()[0].contains("FROZEN"));
    assert!(session.status().contains("parse"), "{}", session.status());
    session.typed("z");
    assert!(session.status().contains("later"), "{}", session.status());
}

#[test]
fn every_size_is_survived() {
    for (width, height) in [(1, 1), (5, 2), (20, 6), (80, 24), (300, 100)] {
        let mut session = Session::new(width, height);
        for keys in ["", "jjkk", "/a", "?"] {
            session.typed(keys);
            session.screen();
            session.press(&[KeyCode::Enter, KeyCode::Tab]);
            session.screen();
            session.typed("hl");
            session.press(&[KeyCode::PageDown, KeyCode::Home, KeyCode::End, KeyCode::Backspace]);
            session.screen();
        }
    }
    let mut empty = Session::new(80, 24);
    empty.window = Window::new(30);
    empty.view = View::new();
    empty.view.refresh(&empty.window);
    empty.typed("jkhl/x");
    empty.press(&[KeyCode::Enter, KeyCode::Tab, KeyCode::Char('j'), KeyCode::Enter, KeyCode::Char('n')]);
    assert!(empty.screen().iter().any(|line| line.contains("No samples yet")));
}
