//! Headless Chromium, driven over WebDriver: chromedriver is an HTTP server, so this is all there is to it.

use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::http;
use super::process::scratch_dir;

/// A window of a browser; closed when dropped.
pub struct Browser {
    driver: Child,
    address: SocketAddr,
    session: String,
}

/// Whether Chromium and its driver are here.
pub fn has_browser() -> bool {
    let runs =
        |name: &str| Command::new(name).arg("--version").output().is_ok_and(|out| out.status.success());
    runs("chromium") && runs("chromedriver")
}

impl Browser {
    /// Opens a window of this size. With `dark`, pages are told that dark is preferred.
    pub fn open(width: u32, height: u32, dark: bool) -> Self {
        let mut driver = Command::new("chromedriver")
            .arg("--port=0")
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("chromedriver starts");
        let lines = BufReader::new(driver.stdout.take().expect("a pipe")).lines();
        let port = lines.map_while(Result::ok).find_map(|line| {
            let rest = line.split("started successfully on port ").nth(1)?;
            rest.trim_end_matches('.').parse::<u16>().ok()
        });
        let address = SocketAddr::from(([127, 0, 0, 1], port.expect("chromedriver says its port")));
        let profile = scratch_dir("browser");
        let mut args: Vec<String> = [
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-quic",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--disable-dev-shm-usage",
            "--hide-scrollbars",
        ]
        .map(str::to_owned)
        .to_vec();
        args.push(format!("--user-data-dir={}", profile.display()));
        args.push(format!("--window-size={width},{height}"));
        if dark {
            args.push("--blink-settings=preferredColorScheme=0".to_owned());
        }
        let wanted = json!({"capabilities": {"alwaysMatch": {
            "browserName": "chrome",
            "goog:chromeOptions": {"args": args, "binary": "/usr/bin/chromium"},
            "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"},
        }}});
        let mut browser = Self { driver, address, session: String::new() };
        let answer = browser.ask("", &wanted);
        browser.session = format!("/{}", answer["sessionId"].as_str().unwrap_or_else(|| panic!("{answer}")));
        // The size of the page, not of a window around it.
        browser.command(
            "Emulation.setDeviceMetricsOverride",
            &json!({
                "width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600,
            }),
        );
        browser
    }

    fn ask(&self, path: &str, body: &Value) -> Value {
        let response = http::post(self.address, &format!("/session{}{path}", self.session), body);
        let answer = response.json()["value"].clone();
        assert_eq!(response.status, 200, "{path}: {answer}");
        answer
    }

    /// A command of the DevTools protocol.
    pub fn command(&self, name: &str, params: &Value) -> Value {
        self.ask("/goog/cdp/execute", &json!({"cmd": name, "params": params}))
    }

    /// Loads a page.
    pub fn go(&self, url: &str) {
        self.ask("/url", &json!({"url": url}));
    }

    /// The value of a function's body in the page.
    pub fn run(&self, script: &str) -> Value {
        self.ask("/execute/sync", &json!({"script": script, "args": []}))
    }

    /// Waits until the body of a function gives something true, and returns it.
    pub fn wait(&self, script: &str) -> Value {
        let until = Instant::now() + Duration::from_secs(120);
        loop {
            let value = self.run(script);
            let empty = matches!(&value, Value::Null | Value::Bool(false)) || value == "" || value == 0;
            if !empty {
                return value;
            }
            let page = || self.run("return document.body.innerText");
            assert!(Instant::now() < until, "still not: {script}\n{}", page());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// The text of the element with this id.
    pub fn text(&self, id: &str) -> String {
        self.run(&format!("return document.getElementById({id:?}).innerText"))
            .as_str()
            .expect("text")
            .to_owned()
    }

    /// What the page has said on its console since the last time, warnings and errors.
    pub fn complaints(&self) -> Vec<String> {
        let entries = self.ask("/se/log", &json!({"type": "browser"}));
        let entries = entries.as_array().expect("a list");
        let bad = entries.iter().filter(|entry| entry["level"] == "SEVERE" || entry["level"] == "WARNING");
        bad.map(|entry| entry["message"].to_string()).collect()
    }

    /// The URLs of all requests since the last time.
    pub fn requests(&self) -> Vec<String> {
        let entries = self.ask("/se/log", &json!({"type": "performance"}));
        let url = |entry: &Value| {
            let message: Value = serde_json::from_str(entry["message"].as_str()?).ok()?;
            let message = &message["message"];
            let sent = message["method"] == "Network.requestWillBeSent";
            sent.then(|| message["params"]["request"]["url"].as_str().unwrap_or_default().to_owned())
        };
        entries.as_array().expect("a list").iter().filter_map(url).collect()
    }

    /// Writes a picture of the whole page.
    pub fn picture(&self, file: &Path) {
        let picture =
            self.command("Page.captureScreenshot", &json!({"format": "png", "captureBeyondViewport": true}));
        let bytes = base64(picture["data"].as_str().expect("a picture"));
        std::fs::File::create(file).expect("a file").write_all(&bytes).expect("room");
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        if !self.session.is_empty() {
            // The driver closes the browser; an error here would hide the one that led here.
            let quit = http::request("DELETE", &format!("/session{}", self.session), b"");
            let _ = std::panic::catch_unwind(|| http::send(self.address, &quit));
        }
        let _ = self.driver.kill();
        let _ = self.driver.wait();
    }
}

fn base64(text: &str) -> Vec<u8> {
    let value = |c: u8| match c {
        b'A'..=b'Z' => c - b'A',
        b'a'..=b'z' => c - b'a' + 26,
        b'0'..=b'9' => c - b'0' + 52,
        b'+' => 62,
        _ => 63,
    };
    let digits: Vec<u8> = text.bytes().filter(|c| *c != b'=').map(value).collect();
    let bytes = digits.chunks(4).flat_map(|four| {
        let bits =
            four.iter().fold(0u32, |bits, digit| bits << 6 | u32::from(*digit)) << (6 * (4 - four.len()));
        bits.to_be_bytes().into_iter().skip(1).take(four.len() - 1)
    });
    bytes.collect()
}
