//! Clients without manners. What they do is drawn from a seed.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// What a client has seen.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    rounds: u64,
    connected: u64,
    /// Answers read to their end with status 200.
    whole: u64,
    /// Answers read to their end with another status.
    refused: u64,
    vanished: u64,
    lines: u64,
    /// Nothing came for minutes although something was due: what had been sent.
    silent: Vec<String>,
    /// Answers that break the protocol.
    broken: Vec<String>,
}

impl Tally {
    /// Both.
    pub(crate) fn add(mut self, other: Tally) -> Tally {
        self.rounds += other.rounds;
        self.connected += other.connected;
        self.whole += other.whole;
        self.refused += other.refused;
        self.vanished += other.vanished;
        self.lines += other.lines;
        self.silent.extend(other.silent);
        self.broken.extend(other.broken);
        self
    }

    /// That everything happened, and nothing that must not.
    pub(crate) fn check(&self) {
        assert!(self.broken.is_empty(), "{:?}", &self.broken[..self.broken.len().min(3)]);
        assert!(self.silent.is_empty(), "never answered: {:?}", &self.silent[..self.silent.len().min(5)]);
        let happened = [self.whole, self.refused, self.vanished, self.lines];
        assert!(happened.iter().all(|count| *count > 0), "{self:?}");
    }
}

/// One of many.
pub(crate) struct Client<'s> {
    /// At the end everybody leaves at once, whatever they were doing.
    stop: &'s AtomicBool,
    http: SocketAddr,
    tcp: SocketAddr,
    random: u64,
    tally: Tally,
    /// What was sent last, for the report.
    sent: String,
}

/// Nothing came in time, or the connection is gone.
enum Lost {
    Silent,
    Gone,
}

impl<'s> Client<'s> {
    /// A client whose deeds follow from its index.
    pub(crate) fn new(http: SocketAddr, tcp: SocketAddr, index: u64, stop: &'s AtomicBool) -> Self {
        let random = index.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5eed;
        Client { stop, http, tcp, random, tally: Tally::default(), sent: String::new() }
    }

    /// Misbehaves until it is told to stop.
    pub(crate) fn run(mut self) -> Tally {
        while !self.stop.load(Ordering::Relaxed) {
            self.tally.rounds += 1;
            let socket = if self.below(4) == 0 { self.tcp } else { self.http };
            let Ok(stream) = TcpStream::connect(socket) else {
                self.pause(50);
                continue;
            };
            self.tally.connected += 1;
            stream.set_read_timeout(Some(Duration::from_millis(500))).expect("a timeout");
            stream.set_write_timeout(Some(Duration::from_secs(60))).expect("a timeout");
            let lost = if socket == self.tcp { self.raw(stream) } else { self.web(stream) };
            if let Err(Lost::Silent) = lost {
                let sent = std::mem::take(&mut self.sent);
                self.tally.silent.push(sent);
            }
            let rest = self.below(30);
            self.pause(rest);
        }
        self.tally
    }

    fn next(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.random ^ (self.random >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    fn pause(&self, milliseconds: u64) {
        std::thread::sleep(Duration::from_millis(milliseconds));
    }

    /// A request body: chats and completions, one to three choices, short and long, streamed or not.
    fn body(&mut self, stream: bool) -> (&'static str, Value) {
        let mut body = json!({"max_tokens": 1 + self.below(60), "seed": self.below(1000), "stream": stream});
        body["temperature"] = json!([0.0, 0.7, 1.0][self.below(3) as usize]);
        if stream && self.below(8) == 0 {
            body["max_tokens"] = json!(200 + self.below(400));
            body["ignore_eos"] = json!(true);
        }
        if self.below(4) == 0 {
            body["n"] = json!(1 + self.below(3));
        }
        if self.below(6) == 0 {
            body["stop"] = json!([" apples", "is"]);
            body["cache_salt"] = json!("salt");
        }
        if self.below(6) == 0 {
            body["model"] = json!(["small", "large"][self.below(2) as usize]);
        }
        let text =
            "In January Mia has 19 apples. In February Mia picks 51. ".repeat(1 + self.below(6) as usize);
        if self.below(2) == 0 {
            body["messages"] = json!([{"role": "user", "content": text}]);
            ("/v1/chat/completions", body)
        } else {
            body["prompt"] = json!(text);
            ("/v1/completions", body)
        }
    }

    fn post(path: &str, body: &[u8], close: bool) -> Vec<u8> {
        let connection = if close { "close" } else { "keep-alive" };
        let mut bytes = format!(
            "POST {path} HTTP/1.1\r\nHost: a\r\nConnection: {connection}\r\nContent-Length: {}\r\n\r\n",
            body.len()
        )
        .into_bytes();
        bytes.extend_from_slice(body);
        bytes
    }

    fn web(&mut self, mut s: TcpStream) -> Result<(), Lost> {
        match self.below(12) {
            // A whole answer.
            0 | 1 => {
                let stream = self.below(2) == 0;
                let (path, body) = self.body(stream);
                self.write(&mut s, &Self::post(path, body.to_string().as_bytes(), true))?;
                self.whole(&mut s)
            }
            // Some bytes of it, perhaps after a long time, then gone.
            2..=4 => {
                let stream = self.below(4) > 0;
                let (path, body) = self.body(stream);
                self.write(&mut s, &Self::post(path, body.to_string().as_bytes(), false))?;
                let stall = [0, 0, 20, 300, 1500][self.below(5) as usize];
                self.pause(stall);
                let most = self.below(3000) as usize;
                if stream {
                    self.some(&mut s, most)?;
                }
                self.vanish(s)
            }
            // A slow reader that stays to the end.
            5 => {
                let (path, body) = self.body(true);
                self.write(&mut s, &Self::post(path, body.to_string().as_bytes(), true))?;
                for _ in 0..self.below(20) {
                    self.pause(20);
                    self.some(&mut s, 64)?;
                }
                self.drain(&mut s)
            }
            // Half a request.
            6 => {
                let (path, body) = self.body(true);
                let bytes = Self::post(path, body.to_string().as_bytes(), false);
                let cut = 1 + self.below(bytes.len() as u64 - 1) as usize;
                self.write(&mut s, &bytes[..cut])?;
                let stall = self.below(400);
                self.pause(stall);
                self.vanish(s)
            }
            // Several on one connection, sent at once or one after the other.
            7 | 8 => {
                let count = 1 + self.below(3);
                let mut bytes = Vec::new();
                for at in 0..count {
                    let (path, mut body) = self.body(false);
                    body["max_tokens"] = json!(1 + self.below(8));
                    body["ignore_eos"] = json!(false);
                    bytes.extend(Self::post(path, body.to_string().as_bytes(), at + 1 == count));
                }
                self.write(&mut s, &bytes)?;
                self.drain(&mut s)
            }
            // Bad ones.
            9 => {
                let bad: [&[u8]; 8] = [
                    b"{",
                    b"{\"prompt\": 5}",
                    b"\xff\xfe",
                    b"[]",
                    b"{\"prompt\":\"a\",\"top_p\":9}",
                    b"{\"prompt\":\"a\",\"logit_bias\":{\"191222\":-100}}",
                    b"{\"messages\":[]}",
                    b"",
                ];
                let body = bad[self.below(8) as usize];
                let path = ["/v1/completions", "/v1/chat/completions", "/v1/nothing", "/tokenize"]
                    [self.below(4) as usize];
                self.write(&mut s, &Self::post(path, body, true))?;
                self.whole(&mut s)
            }
            // No HTTP at all.
            10 => {
                let junk: Vec<u8> = (0..self.below(300)).map(|_| self.next() as u8).collect();
                self.write(&mut s, &junk)?;
                self.write(&mut s, b"\r\n\r\n")?;
                let stall = self.below(100);
                self.pause(stall);
                self.vanish(s)
            }
            _ => {
                let paths = [
                    "/health",
                    "/ready",
                    "/metrics",
                    "/v1/models",
                    "/v1/scheduling",
                    "/v1/models/large",
                    "/version",
                    "/props",
                    "/",
                    "/status",
                    "/v1/status",
                    "/load",
                ];
                let path = paths[self.below(paths.len() as u64) as usize];
                let head = format!("GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
                self.write(&mut s, head.as_bytes())?;
                self.whole(&mut s)
            }
        }
    }

    fn raw(&mut self, mut s: TcpStream) -> Result<(), Lost> {
        let mut lines = Vec::new();
        let count = 1 + self.below(4);
        for id in 0..count {
            let stream = self.below(4) > 0;
            let (_, mut body) = self.body(stream);
            body["id"] = json!(id);
            lines.extend(format!("{body}\n").into_bytes());
        }
        match self.below(6) {
            0 => lines.extend(b"not json\n{\"id\":\"x\",\"prompt\":7}\n{\"op\":\"ping\",\"id\":9}\n"),
            1 => lines.extend(b"{\"op\":\"cancel\",\"id\":0}\n{\"op\":\"cancel\",\"id\":77}\n"),
            2 => lines = b"GET / HTTP/1.1\r\n\r\n".to_vec(),
            3 => lines.extend(b"{\"id\": 5, \"prompt\": \"half"),
            _ => {}
        }
        self.write(&mut s, &lines)?;
        match self.below(3) {
            0 => {
                s.shutdown(Shutdown::Write).map_err(|_| Lost::Gone)?;
                let text = self.all(&mut s)?;
                self.tally.lines += text.iter().filter(|b| **b == b'\n').count() as u64;
                let whole = text.is_empty() || text.ends_with(b"\n");
                if !whole {
                    self.tally.broken.push(format!("a line is cut: {}", tail(&text)));
                }
                Ok(())
            }
            1 => {
                let stall = self.below(800);
                self.pause(stall);
                self.vanish(s)
            }
            _ => {
                let most = self.below(4000) as usize;
                self.some(&mut s, most)?;
                self.vanish(s)
            }
        }
    }

    fn write(&mut self, s: &mut TcpStream, bytes: &[u8]) -> Result<(), Lost> {
        self.sent = String::from_utf8_lossy(&bytes[..bytes.len().min(1500)]).into_owned();
        s.write_all(bytes).map_err(|e| lost(&e))
    }

    /// What comes next, after minutes at most; nothing at the end of the connection.
    fn read(&self, s: &mut TcpStream, buffer: &mut [u8]) -> Result<usize, Lost> {
        let patience = Instant::now() + Duration::from_secs(240);
        loop {
            match s.read(buffer).map_err(|e| lost(&e)) {
                Err(Lost::Silent) if self.stop.load(Ordering::Relaxed) => return Err(Lost::Gone),
                Err(Lost::Silent) if Instant::now() < patience => {}
                read => return read,
            }
        }
    }

    fn some(&self, s: &mut TcpStream, most: usize) -> Result<(), Lost> {
        self.read(s, &mut vec![0; most.max(1)]).map(|_| ())
    }

    fn all(&self, s: &mut TcpStream) -> Result<Vec<u8>, Lost> {
        let (mut bytes, mut buffer) = (Vec::new(), vec![0; 16 << 10]);
        loop {
            match self.read(s, &mut buffer)? {
                0 => return Ok(bytes),
                read => bytes.extend_from_slice(&buffer[..read]),
            }
        }
    }

    /// Leaves: orderly, or with everything unread, which resets the connection.
    fn vanish(&mut self, s: TcpStream) -> Result<(), Lost> {
        self.tally.vanished += 1;
        if self.below(3) == 0 {
            let _ = s.shutdown(Shutdown::Both);
        }
        Ok(())
    }

    /// Reads to the end of the connection and counts the answer.
    fn whole(&mut self, s: &mut TcpStream) -> Result<(), Lost> {
        let bytes = self.all(s)?;
        let text = String::from_utf8_lossy(&bytes);
        let status = text.strip_prefix("HTTP/1.1 ").and_then(|rest| rest.get(..3));
        match status {
            Some("200") => {
                let chunked = text.contains("chunked");
                let ended = !chunked || text.ends_with("0\r\n\r\n");
                if !ended {
                    self.tally.broken.push(format!("a stream is cut: {}", tail(&bytes)));
                }
                self.tally.whole += 1;
            }
            Some("400" | "404" | "405" | "415" | "422" | "429" | "503") => self.tally.refused += 1,
            _ => self.tally.broken.push(format!("no answer that anybody expects: {}", tail(&bytes))),
        }
        Ok(())
    }

    /// Reads to the end of the connection.
    fn drain(&mut self, s: &mut TcpStream) -> Result<(), Lost> {
        self.all(s).map(|_| self.tally.whole += 1)
    }
}

fn tail(bytes: &[u8]) -> String {
    String::from_utf8_lossy(&bytes[bytes.len().saturating_sub(200)..]).into_owned()
}

fn lost(error: &std::io::Error) -> Lost {
    match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut => Lost::Silent,
        _ => Lost::Gone,
    }
}
