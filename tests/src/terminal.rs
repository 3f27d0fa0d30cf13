//! A terminal without a screen: tmux with one pane, controlled by key presses and read as text.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::skip;

/// Longer than anything takes to appear on a slow, shared machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// A terminal with an interactive shell in it; ends with its owner.
#[derive(Debug)]
pub struct Terminal {
    socket: PathBuf,
}

impl Terminal {
    /// Starts a shell in `directory`, with these variables, with this many columns and lines.
    pub fn new(directory: &Path, columns: u16, lines: u16, variables: &[(&str, &str)]) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        // The path of a socket has room for 107 bytes: not in the target directory.
        let socket = std::env::temp_dir().join(format!("selfwind-tmux-{}-{number}", std::process::id()));
        let terminal = Self { socket };
        let mut command = terminal.tmux(&["-f", "/dev/null", "new-session", "-d", "-c"]);
        command.arg(directory).args(["-x", &columns.to_string(), "-y", &lines.to_string()]);
        // The server of this terminal alone starts here, and hands its variables on.
        command.envs(variables.iter().copied()).env("PS1", "shell> ").env("HISTFILE", "");
        let output = match command.args(["bash", "--norc", "--noprofile"]).output() {
            Err(error) if error.kind() == ErrorKind::NotFound => skip::leave("tmux is not installed"),
            output => output.expect("tmux runs"),
        };
        assert!(output.status.success(), "tmux: {}", String::from_utf8_lossy(&output.stderr));
        terminal.wait_for("a prompt", |screen| screen.contains("shell>"));
        terminal
    }

    fn tmux(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("tmux");
        // Inside another tmux too.
        command.env_remove("TMUX").arg("-S").arg(&self.socket).args(arguments);
        command
    }

    /// Presses keys, by their names in tmux (`Enter`, `Escape`, `Tab`, `j`); a text is typed as it is.
    pub fn press(&self, keys: &[&str]) {
        let status = self.tmux(&["send-keys"]).args(keys).status().expect("tmux runs");
        assert!(status.success(), "tmux send-keys {keys:?}");
    }

    /// Types a command and Enter.
    pub fn run(&self, line: &str) {
        let status = self.tmux(&["send-keys", "-l"]).arg(line).status().expect("tmux runs");
        assert!(status.success(), "tmux send-keys {line:?}");
        self.press(&["Enter"]);
    }

    /// What is on the screen.
    pub fn screen(&self) -> String {
        let output = self.tmux(&["capture-pane", "-p"]).output().expect("tmux runs");
        String::from_utf8(output.stdout).expect("tmux writes UTF-8")
    }

    /// The same with the escape sequences of colours and styles.
    pub fn coloured_screen(&self) -> String {
        let output = self.tmux(&["capture-pane", "-p", "-e"]).output().expect("tmux runs");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// A format of tmux about the pane, such as `#{alternate_on}`.
    pub fn ask(&self, format: &str) -> String {
        let output = self.tmux(&["display-message", "-p", format]).output().expect("tmux runs");
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    /// The process that the shell runs.
    pub fn foreground(&self) -> Option<i32> {
        let shell = self.ask("#{pane_pid}");
        let children = std::fs::read_to_string(format!("/proc/{shell}/task/{shell}/children")).ok()?;
        children.split_whitespace().next()?.parse().ok()
    }

    /// Waits until the screen is as wanted and gives it; fails the test if it never is.
    pub fn wait_for(&self, what: &str, wanted: impl Fn(&str) -> bool) -> String {
        let began = Instant::now();
        loop {
            let screen = self.screen();
            if wanted(&screen) {
                return screen;
            }
            assert!(began.elapsed() < PATIENCE, "no {what} on the screen:\n{screen}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.tmux(&["kill-server"]).output();
        let _ = std::fs::remove_file(&self.socket);
    }
}
