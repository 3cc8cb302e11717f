//! Starts the real binary with a configuration and stops it again.

use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use super::root;

static SERIAL: AtomicU32 = AtomicU32::new(0);

/// A folder of its own below the build's temporary folder.
pub fn scratch_dir(name: &str) -> PathBuf {
    let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
    let dir =
        PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}-{serial}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("a scratch folder");
    dir
}

/// The demo pair with this router section and these extra lines of the server section.
pub fn demo_config(router: &str, server: &str) -> String {
    let models = root().join("models/demo");
    format!(
        "[[model]]\nname = \"small\"\npath = {:?}\nthreads = 1\n[[model]]\nname = \"large\"\npath = {:?}\n\
         threads = 1\n[router]\n{router}\n[budget]\nmemory = \"64MiB\"\n[server]\nhttp = \"127.0.0.1:0\"\n\
         tcp = \"127.0.0.1:0\"\nserved_model_name = \"demo\"\n{server}\n",
        models.join("slm"),
        models.join("llm"),
    )
}

/// The demo pair without the routers that lie beside it, and with its problems.
pub fn bare_demo() -> PathBuf {
    let dir = scratch_dir("bare-demo");
    for name in ["slm", "llm", "eval.jsonl"] {
        std::os::unix::fs::symlink(root().join("models/demo").join(name), dir.join(name)).expect("a link");
    }
    dir
}

/// As [`run`], with the bare pair behind `--demo`: a test brings its own router files.
pub fn run_bare(args: &[&str]) -> (bool, String, String) {
    let dir = bare_demo().display().to_string();
    let models = ["--models", &dir];
    run(&[args, if args.contains(&"--demo") { &models } else { &[] }].concat())
}

/// A running server; killed when dropped.
pub struct ServerProcess {
    child: Child,
    /// Its HTTP endpoint.
    pub http: SocketAddr,
    /// Its raw TCP endpoint.
    pub tcp: SocketAddr,
    log: std::thread::JoinHandle<String>,
}

impl ServerProcess {
    /// Serves the configuration's text; panics with the server's own words when it does not start.
    pub fn start(config: &str) -> Self {
        Self::launch(config, true)
    }

    /// As [`ServerProcess::start`], but nobody reads the server's log once it serves.
    pub fn start_without_log(config: &str) -> Self {
        Self::launch(config, false)
    }

    fn launch(config: &str, keep_log: bool) -> Self {
        let dir = scratch_dir("serve");
        let file = dir.join("pair.toml");
        std::fs::write(&file, config).expect("a configuration file");
        let mut child = binary()
            .args(["serve", "--config"])
            .arg(&file)
            .stderr(Stdio::piped())
            .spawn()
            .expect("the binary starts");
        let mut lines = BufReader::new(child.stderr.take().expect("a pipe")).lines();
        let mut seen = String::new();
        let (mut http, mut tcp) = (None, None);
        while http.is_none() || tcp.is_none() {
            let Some(Ok(line)) = lines.next() else { panic!("the server did not start:\n{seen}") };
            http = http.or_else(|| line.split("http://").nth(1).and_then(|a| a.trim().parse().ok()));
            if line.starts_with("raw TCP") {
                tcp = line.rsplit(' ').next().and_then(|a| a.parse().ok());
            }
            seen.push_str(&line);
            seen.push('\n');
        }
        let lines = Some(lines).filter(|_| keep_log);
        let log = std::thread::spawn(move || {
            let lines = lines.into_iter().flatten();
            lines.map_while(Result::ok).fold(seen, |all, line| all + &line + "\n")
        });
        ServerProcess { child, http: http.expect("set"), tcp: tcp.expect("set"), log }
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal by name.
    pub fn signal(&self, name: &str) {
        let status = Command::new("kill").args(["-s", name, &self.child.id().to_string()]).status();
        assert!(status.expect("kill runs").success());
    }

    /// Waits for the process to end by itself.
    pub fn wait(&mut self, at_most: Duration) -> Option<ExitStatus> {
        let until = Instant::now() + at_most;
        while Instant::now() < until {
            if let Some(status) = self.child.try_wait().expect("a child") {
                return Some(status);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        None
    }

    /// Ends it with SIGTERM and returns what it wrote to stderr.
    pub fn stop(mut self) -> String {
        self.signal("TERM");
        assert!(self.wait(Duration::from_secs(30)).is_some(), "the server ends after SIGTERM");
        let log = std::mem::replace(&mut self.log, std::thread::spawn(String::new));
        log.join().expect("the log reader")
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The binary under test.
pub fn binary() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tokenrouter"));
    command.current_dir(root()).stdin(Stdio::null());
    command
}

/// Runs it to the end: success, standard output, standard error.
pub fn run(args: &[&str]) -> (bool, String, String) {
    let mut child =
        binary().args(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary starts");
    let mut err = child.stderr.take().expect("a pipe");
    let reader = std::thread::spawn(move || {
        let mut text = String::new();
        err.read_to_string(&mut text).map(|_| text)
    });
    let mut out = String::new();
    child.stdout.take().expect("a pipe").read_to_string(&mut out).expect("UTF-8");
    let err = reader.join().expect("the reader").expect("UTF-8");
    (child.wait().expect("it ends").success(), out, err)
}
