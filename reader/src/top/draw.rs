//! Draws the screen: header, table or flame graph, status, keys.

use ratatui::Frame;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};
use selfwind_profile::digits::{counted, grouped};

use super::flame;
use super::view::{Mode, View};
use super::window::Window;
use crate::terminal::screen::{fit, printable};
use crate::terminal::short_name::short_name;

/// Lines above the body.
const HEADER: u16 = 3;
/// Lines below it: status and keys.
const FOOTER: u16 = 2;
/// Columns before a name in the table.
const NUMBERS_WIDTH: usize = 17;
/// Maximum width of the module column.
const MODULE_WIDTH: usize = 24;

const KEYS: &str = "q quit  hjkl move  Enter zoom  Esc back  Tab view  /nN find  s sort  z freeze  ?";
/// The same if there are several events.
const KEYS_OF_EVENTS: &str =
    "q quit  hjkl move  Enter zoom  Esc back  Tab view  /nN find  s sort  e event  ?";

const HELP: [&str; 13] = [
    "h j k l, arrows   move; in the flame graph j goes to the callee, k to the caller",
    "g G, Home End     first, last;  PageUp PageDown by ten",
    "Enter             zoom: only stacks through the selection, from there on",
    "Esc               end the search, then leave the zooms one by one",
    "Tab               table or flame graph",
    "/ n N             search (case-sensitive if you type capitals), next, previous",
    "s                 sort by SELF or by TOTAL",
    "e                 the next event, if several are recorded (`-e cpu,alloc`)",
    "z                 freeze the display; sampling continues",
    "q, Ctrl-C         quit",
    "",
    "SELF is what counts for the function itself, TOTAL includes everything it called.",
    "? after a name: the frame was guessed from the contents of the stack.",
];

/// The contents of the header.
#[derive(Debug, Default)]
pub(super) struct Facts {
    /// What is shown: a command, a process, or all processes.
    pub(super) subject: String,
    /// Seconds since the start.
    pub(super) seconds: f64,
    /// Sampling rates of the processes, in Hz.
    pub(super) hertz: Vec<u64>,
    /// Samples in the last second.
    pub(super) rate: u64,
    pub(super) samples: u64,
    pub(super) lost: u64,
    pub(super) truncated: u64,
    pub(super) threads: u64,
    pub(super) processes: u64,
    /// Length of the window in seconds; 0 for everything.
    pub(super) window: u64,
    /// How the command ended.
    pub(super) ended: Option<String>,
    pub(super) colour: bool,
}

/// Draws everything.
pub(super) fn draw(frame: &mut Frame<'_>, view: &View, window: &Window, facts: &Facts) {
    let shown = view.frozen.as_ref().unwrap_or(window);
    let area = frame.area();
    let buffer = frame.buffer_mut();
    header(buffer, area, view, shown, facts);
    let body = Rect {
        y: area.y + HEADER.min(area.height),
        height: area.height.saturating_sub(HEADER + FOOTER),
        ..area
    };
    if view.help {
        for (line, text) in HELP.iter().enumerate().take(body.height.into()) {
            put(buffer, body, line as u16, text, Style::new());
        }
    } else if view.picture.weight == 0 {
        let text =
            if facts.ended.is_some() { "No samples." } else { "No samples yet; an idle program gives none." };
        put(buffer, body, 1, text, Style::new());
    } else {
        match view.mode {
            Mode::Table => table(buffer, body, view, shown, facts),
            Mode::Flame => flame::draw(buffer, body, view, shown, facts.colour),
        }
    }
    footer(buffer, area, view, shown);
}

/// Writes one line of an area.
pub(super) fn put(buffer: &mut Buffer, area: Rect, line: u16, text: &str, style: Style) {
    if line < area.height {
        buffer.set_stringn(area.x, area.y + line, printable(text), area.width.into(), style);
    }
}

fn header(buffer: &mut Buffer, area: Rect, view: &View, window: &Window, facts: &Facts) {
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let mut hertz: Vec<String> = facts.hertz.iter().map(u64::to_string).collect();
    hertz.dedup();
    let hertz = if hertz.is_empty() { String::new() } else { format!("  {} Hz", hertz.join("/")) };
    let state = match (&facts.ended, view.frozen.is_some()) {
        (_, true) => "  FROZEN".into(),
        (Some(ended), _) => format!("  {ended}"),
        _ => String::new(),
    };
    let title = format!("selfwind top  {:.0} s{hertz}{state}  {}", facts.seconds, facts.subject);
    put(buffer, area, 0, &title, bold);
    let truncated = facts.truncated as f64 * 100.0 / facts.samples.max(1) as f64;
    let numbers = [
        format!("{}/s", grouped(facts.rate)),
        format!("{} samples", grouped(facts.samples)),
        format!("lost {}", grouped(facts.lost)),
        format!("truncated {truncated:.1}%"),
        counted(facts.threads, "thread", "threads"),
        counted(facts.processes, "process", "processes"),
    ];
    put(buffer, area, 1, &numbers.join("  "), Style::new());
    let covered = match (facts.window, view.measure()) {
        (_, Some(measure)) if measure.is_level() => "now".to_owned(),
        (0, _) => "all".to_owned(),
        (seconds, _) => format!("last {seconds} s"),
    };
    let amount = view.measure().map(|measure| format!("{}, ", measure.describe(view.picture.weight)));
    let covered = amount.unwrap_or_default() + &covered;
    let zoom: Vec<&str> = view.zoom.iter().map(|&label| window.text(label)).collect();
    let found = match (view.pattern.is_empty(), view.finds(window)) {
        (true, _) => String::new(),
        (_, true) => format!(", find: {}", view.pattern),
        (_, false) => format!(", find: {}: no match", view.pattern),
    };
    let line = match (view.typing, zoom.is_empty()) {
        (true, _) => format!("/{}_", view.pattern),
        (_, true) => format!("{covered}{found}"),
        _ => format!("{covered}{found}, zoom: {}", zoom.join(" > ")),
    };
    put(buffer, area, 2, &fit(&line, area.width.into()), Style::new().add_modifier(Modifier::DIM));
}

fn table(buffer: &mut Buffer, area: Rect, view: &View, window: &Window, facts: &Facts) {
    let rows = &view.picture.rows;
    let width = usize::from(area.width);
    let widest = rows.iter().map(|row| window.name(row.label).module.chars().count()).max().unwrap_or(0);
    let module_width = widest.clamp(6, MODULE_WIDTH.min(width / 4).max(6));
    let name_width = width.saturating_sub(NUMBERS_WIDTH + module_width + 2).max(8);
    let mark = |by_total| if view.by_total == by_total { "v" } else { " " };
    let heading = format!(
        "{:>7} {:>7}  {:<name_width$}  MODULE",
        format!("SELF{}", mark(false)),
        format!("TOTAL{}", mark(true)),
        "FUNCTION"
    );
    put(buffer, area, 0, &heading, Style::new().add_modifier(Modifier::BOLD));
    let height = usize::from(area.height.saturating_sub(1));
    let selected = view.selected();
    let first = (selected + 1).saturating_sub(height);
    for (line, row) in rows.iter().skip(first).take(height).enumerate() {
        let name = window.name(row.label);
        let guess = if row.guessed { " ?" } else { "" };
        let text = format!("{}{guess}", short_name(&name.text, name_width - guess.len()));
        let module = fit(&name.module, module_width).into_owned();
        let percent = |weight: u64| weight as f64 * 100.0 / view.picture.weight.max(1) as f64;
        let share =
            |weight: u64| if weight == 0 { " ".repeat(7) } else { format!("{:>6.1}%", percent(weight)) };
        let text = format!("{} {}  {text:<name_width$}  {module}", share(row.own), share(row.total));
        let mut style = Style::new();
        if facts.colour {
            style = match percent(row.own) {
                share if share >= 10.0 => style.fg(Color::Red),
                share if share >= 2.0 => style.fg(Color::Yellow),
                _ => style,
            };
        }
        if view.matches(&name.text) {
            style = style.add_modifier(Modifier::BOLD | Modifier::UNDERLINED);
        }
        if first + line == selected {
            style = style.add_modifier(Modifier::REVERSED);
        }
        let padded = format!("{text:<width$}");
        put(buffer, area, line as u16 + 1, &padded, style);
    }
}

/// Shows the full name of the selection, which may be cut in the table and the flame graph.
fn footer(buffer: &mut Buffer, area: Rect, view: &View, window: &Window) {
    let percent = |weight: u64| weight as f64 * 100.0 / view.picture.weight.max(1) as f64;
    let selected = match (view.mode, &view.picture.tree) {
        (Mode::Table, _) => view.picture.rows.get(view.selected()).map(|r| (r.label, r.own, r.total)),
        (Mode::Flame, Some(tree)) => {
            let node = tree.node(view.node());
            (view.node() != 0).then_some((node.label, node.own, node.total))
        }
        _ => None,
    };
    let bottom = area.height.saturating_sub(FOOTER);
    if let Some((label, own, total)) = selected.filter(|_| !view.help) {
        let name = window.name(label);
        let numbers = format!("self {:.1}%  total {:.1}%", percent(own), percent(total));
        let text = format!("{numbers}  {}  {}", name.text, name.module);
        put(
            buffer,
            area,
            bottom,
            &fit(text.trim_end(), area.width.into()),
            Style::new().add_modifier(Modifier::BOLD),
        );
    }
    let keys = if view.measure().is_some() { KEYS_OF_EVENTS } else { KEYS };
    put(buffer, area, bottom + 1, keys, Style::new().add_modifier(Modifier::DIM));
}
