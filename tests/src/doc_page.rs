//! Runs the commands of a documentation page.
//!
//! Blocks fenced as `console` contain commands after `$ ` (continued after `> `) and their output. The commands run in
//! order, in one shell per page, in an empty directory. Each must succeed, and each line shown must occur in the real
//! output, in order; numbers may differ, and `...` stands for any lines. A word after `console` changes that: `fails`
//! if the last command of the block fails, `no-run: REASON` for what cannot run in a test.

use std::path::Path;
use std::process::Command;

use crate::outcome::run;

/// A command and its output according to the page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// Line of the page.
    pub line: usize,
    /// The command, possibly of several lines.
    pub command: String,
    /// Lines shown under it.
    pub shown: Vec<String>,
    /// It ends with a status other than 0.
    pub fails: bool,
    /// Why it cannot run in a test.
    pub not_run: Option<String>,
}

/// Line numbers of the blocks whose commands are not run because they are no `console` blocks.
pub fn unrun_blocks(text: &str) -> Vec<usize> {
    let languages = ["```sh", "```bash", "```shell"];
    let lines = text.lines().enumerate().filter(|(_, line)| languages.contains(&line.trim_end()));
    lines.map(|(number, _)| number + 1).collect()
}

/// Reads the steps of a page.
pub fn steps(name: &str, text: &str) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    let mut block: Option<&str> = None;
    for (number, line) in text.lines().enumerate().map(|(number, line)| (number + 1, line)) {
        if let Some(info) = line.strip_prefix("```") {
            // The last command of such a block fails, those before prepare it.
            if let Some(step) = steps.last_mut().filter(|_| block == Some("console fails")) {
                step.fails = true;
            }
            block = if block.is_some() { None } else { Some(info) };
            continue;
        }
        let Some(info) = block.filter(|info| info.starts_with("console")) else { continue };
        let attribute = info.trim_start_matches("console").trim();
        assert!(
            ["", "fails"].contains(&attribute) || attribute.starts_with("no-run: "),
            "{name}:{number}: unknown attribute of a console block: {attribute}"
        );
        if let Some(command) = line.strip_prefix("$ ") {
            steps.push(Step {
                line: number,
                command: command.to_owned(),
                shown: Vec::new(),
                fails: false,
                not_run: attribute.strip_prefix("no-run: ").map(str::to_owned),
            });
            continue;
        }
        let step = steps.last_mut().unwrap_or_else(|| panic!("{name}:{number}: output before any command"));
        match line.strip_prefix("> ").or(line.strip_prefix(">")) {
            Some(more) if step.shown.is_empty() => step.command.push_str(&format!("\n{more}")),
            _ => step.shown.push(line.to_owned()),
        }
    }
    steps
}

/// Runs the steps of a page in `directory` with the program in `bin` and asserts that they do what the page says.
pub fn run_page(name: &str, text: &str, directory: &Path, bin: &Path) {
    let steps = steps(name, text);
    let mut script = String::from("exec 2>&1\n");
    for (number, step) in steps.iter().enumerate() {
        match &step.not_run {
            Some(reason) => println!("{name}:{}: not run, {reason}: {}", step.line, step.command),
            // A group instead of a subshell, so that variables and background processes stay for later commands.
            None => script.push_str(&format!("{{\n{}\n}}\necho \"@@{number} $?\"\n", step.command)),
        }
    }
    let file = directory.join(".script");
    std::fs::write(&file, script).expect("the directory is ours");
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap_or_default());
    let mut command = Command::new("bash");
    command
        .arg(&file)
        .current_dir(directory)
        .env("PATH", path)
        .env("LC_ALL", "C.UTF-8")
        .env("HOME", directory);
    command.env("XDG_RUNTIME_DIR", directory.join("run")).env("TERM", "dumb").env_remove("XDG_CACHE_HOME");
    let outcome = run(&mut command);
    let mut rest = outcome.stdout.as_str();
    for (number, step) in steps.iter().enumerate().filter(|(_, step)| step.not_run.is_none()) {
        let location = format!("{name}:{}: {}", step.line, step.command);
        let (printed, after) = rest
            .split_once(&format!("@@{number} "))
            .unwrap_or_else(|| panic!("{location}: the shell ended\n{}", outcome.stdout));
        let (status, after) = after.split_once('\n').unwrap_or((after, ""));
        assert_eq!(step.fails, status != "0", "{location}: status {status}\n{printed}");
        assert_shown(&location, &step.shown, printed);
        rest = after;
    }
}

/// Every line of `shown` is a line of `printed`, in order.
fn assert_shown(location: &str, shown: &[String], printed: &str) {
    let mut lines = printed.lines().map(normal);
    for line in shown.iter().filter(|line| !["...", "…", ""].contains(&line.trim())) {
        let wanted = normal(line);
        let open = wanted.strip_suffix("...").map(str::to_owned);
        let found = lines.any(|line| match &open {
            Some(start) => line.starts_with(start.as_str()),
            None => line == wanted,
        });
        assert!(found, "{location}: the page shows\n{line}\nwhich does not come (any more) in\n{printed}");
    }
}

/// Normalizes a line: large numbers and the blanks that align columns vary from run to run. Whether a number is 0 does
/// not: `0 lost` is not 7 lost. In a fraction it may.
fn normal(line: &str) -> String {
    let mut text = String::new();
    for word in line.split_whitespace() {
        if !text.is_empty() {
            text.push(' ');
        }
        let mut rest = word;
        while let Some(c) = rest.chars().next() {
            let more = |c: char| c.is_ascii_digit() || c == '.' || c == ',';
            let len = if c.is_ascii_digit() { rest.find(|c| !more(c)).unwrap_or(rest.len()) } else { 0 };
            let (number, behind) = rest.split_at(if len > 0 { len } else { c.len_utf8() });
            match (len, number.trim_end_matches(['.', ','])) {
                (0, _) => text.push(c),
                (_, "0") => text.push('0'),
                (_, whole) if whole.contains('.') => text.push_str("1.5"),
                _ => text.push('1'),
            }
            rest = behind;
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "# Page\n```console\n$ cat <<END\n> 12,345 of 6.7%\n> END\n12 of 9.1%\n$ x=5\n```\n\
        ```console fails\n$ false\n```\n```console no-run: no moon\n$ moon\n```\n```text\n$ not a command\n```\n\
        ```console\n$ echo value $x; echo; echo end\nvalue 7\n...\nen...\n```\n";

    #[test]
    fn pages_are_taken_apart() {
        let steps = steps("page", PAGE);
        assert_eq!(steps.len(), 5);
        assert_eq!(steps[0].command, "cat <<END\n12,345 of 6.7%\nEND");
        assert_eq!((steps[0].line, steps[0].shown.as_slice()), (3, &["12 of 9.1%".to_owned()][..]));
        assert_eq!((steps[2].fails, steps[3].not_run.as_deref()), (true, Some("no moon")));
    }

    #[test]
    fn what_a_page_says_is_what_happens() {
        let scratch = crate::scratch::Scratch::new();
        run_page("page", PAGE, scratch.path(), Path::new("/"));
        for lie in [
            "```console\n$ echo 57 lost\n0 lost\n```",
            "```console\n$ echo one\ntwo\n```",
            "```console\n$ false\n```",
            "```console fails\n$ true\n```",
        ] {
            let caught = std::panic::catch_unwind(|| run_page("lie", lie, scratch.path(), Path::new("/")));
            assert!(caught.is_err(), "{lie}");
        }
    }
}
