//! A server of our own as a child process, for the time of a measurement.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::http::Site;

/// Lines of its log that are kept for the case that it dies.
const KEPT: usize = 8;
/// Variables that would go before the file.
const PREFIX: &str = "TOKENROUTER_";

static SERIAL: AtomicU32 = AtomicU32::new(0);

/// A child that serves; killed when dropped.
pub(super) struct Server {
    child: Child,
    /// Its configuration.
    file: PathBuf,
    log: Arc<Mutex<VecDeque<String>>>,
    /// Where it listens.
    pub(super) site: Site,
}

impl Server {
    /// Starts this program as `serve` with a configuration, and waits until it listens and has its models.
    ///
    /// # Errors
    /// Its own words when it does not start.
    pub(super) fn start(config: &str, interrupted: &AtomicBool) -> Result<Self, String> {
        let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
        let file =
            std::env::temp_dir().join(format!("tokenrouter-bench-{}-{serial}.toml", std::process::id()));
        std::fs::write(&file, config).map_err(|e| format!("{}: {e}", file.display()))?;
        let program = std::env::current_exe().map_err(|e| format!("this program cannot be found: {e}"))?;
        let mut command = Command::new(program);
        command.args(["serve", "--config"]).arg(&file);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        // Their values are in the file already, under what is measured.
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with(PREFIX) && name != "TOKENROUTER_LOG" {
                command.env_remove(name);
            }
        }
        // Ctrl-C ends the measurement; the server ends after it.
        #[cfg(unix)]
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let spawned = command.spawn();
        let child = match spawned {
            Ok(child) => child,
            Err(e) => {
                let _ = std::fs::remove_file(&file);
                return Err(format!("a server cannot be started: {e}"));
            }
        };
        let log = Arc::new(Mutex::new(VecDeque::new()));
        let (says, hears) = channel();
        let site = Site { address: String::new(), prefix: String::new(), key: None };
        let mut server = Server { child, file, log: log.clone(), site };
        let stderr = server.child.stderr.take();
        std::thread::Builder::new()
            .name("server log".into())
            .spawn(move || stderr.into_iter().for_each(|pipe| read_log(BufReader::new(pipe), &log, &says)))
            .map_err(|e| format!("no thread for the server's log: {e}"))?;
        loop {
            match hears.recv_timeout(Duration::from_millis(50)) {
                Ok(address) => {
                    server.site.address = address;
                    return Ok(server);
                }
                Err(RecvTimeoutError::Timeout) if interrupted.load(Ordering::Relaxed) => {
                    return Err("interrupted".into());
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Err(server.death()),
            }
        }
    }

    /// Its process.
    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Whether it still runs.
    pub(super) fn alive(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// How it ended, and its last words.
    pub(super) fn death(&mut self) -> String {
        let how = self.child.wait().map_or_else(|e| e.to_string(), |status| status.to_string());
        let log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        let words: Vec<&str> = log.iter().map(String::as_str).collect();
        format!("the server ended ({how}); its last words:\n{}", words.join("\n"))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_file(&self.file);
    }
}

/// Reads to the end, keeps the last lines, and tells the address.
fn read_log(lines: impl BufRead, kept: &Mutex<VecDeque<String>>, says: &Sender<String>) {
    for line in lines.lines().map_while(Result::ok) {
        if let Some((_, address)) = line.rsplit_once(" on http://").filter(|_| line.starts_with("serving ")) {
            let _ = says.send(address.trim().to_owned());
        }
        let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() == KEPT {
            kept.pop_front();
        }
        kept.push_back(line);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_is_found_and_the_last_lines_are_kept() {
        let log: String = (0..20).map(|n| format!("line {n}\n")).collect();
        let text = format!("model small\nserving \"a on http://x\" on http://127.0.0.1:4321\n{log}");
        let (says, hears) = channel();
        let kept = Mutex::new(VecDeque::new());
        read_log(text.as_bytes(), &kept, &says);
        assert_eq!(hears.recv().as_deref(), Ok("127.0.0.1:4321"));
        assert!(hears.try_recv().is_err(), "one address");
        let kept = kept.into_inner().expect("whole");
        assert_eq!((kept.len(), kept.back().map(String::as_str)), (KEPT, Some("line 19")));
    }
}
