//! The JSON of a call that is still being written.

use serde_json::{Map, Value};

/// What the beginning of a call says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Head {
    /// Nothing certain yet.
    More,
    /// The name is known and the arguments begin, as an object, at this byte.
    Call { name: String, arguments: usize },
    /// A call perhaps, but not in the usual order: to be read when it is complete.
    Whole,
    /// No call.
    Never,
}

/// Reads the beginning of a call.
pub(super) fn head(text: &str) -> Head {
    let mut cursor = Cursor { text, at: 0 };
    read_head(&mut cursor).unwrap_or_else(|head| head)
}

/// Reads a complete call: its name and its arguments as text. With `bare` it may have none.
pub(super) fn whole(text: &str, bare: bool) -> Option<(String, String)> {
    let call: Map<String, Value> = serde_json::from_str(text).ok()?;
    let name = call.get("name")?.as_str().filter(|name| !name.is_empty())?;
    let arguments = match call.get("arguments").or_else(|| call.get("parameters")) {
        None | Some(Value::Null) if bare => "{}".to_owned(),
        Some(object @ Value::Object(_)) => object.to_string(),
        // Some models print the arguments twice over.
        Some(Value::String(text)) if serde_json::from_str::<Map<String, Value>>(text).is_ok() => text.clone(),
        _ => return None,
    };
    Some((name.to_owned(), arguments))
}

fn read_head(cursor: &mut Cursor<'_>) -> Result<Head, Head> {
    cursor.byte(b'{')?;
    let mut name = None;
    loop {
        let key = cursor.string()?;
        cursor.byte(b':')?;
        match key.as_str() {
            "name" => name = Some(cursor.string()?),
            "type" | "id" => drop(cursor.string()?),
            "arguments" | "parameters" => {
                return match (name, cursor.peek()?) {
                    (Some(name), b'{') if !name.is_empty() => Ok(Head::Call { name, arguments: cursor.at }),
                    _ => Ok(Head::Whole),
                };
            }
            _ => return Ok(Head::Never),
        }
        match cursor.peek()? {
            b',' => cursor.at += 1,
            b'}' if name.is_some() => return Ok(Head::Whole),
            _ => return Ok(Head::Never),
        }
    }
}

struct Cursor<'a> {
    text: &'a str,
    at: usize,
}

impl Cursor<'_> {
    /// The next byte that is no white space; stays before it.
    fn peek(&mut self) -> Result<u8, Head> {
        let rest = &self.text.as_bytes()[self.at..];
        let space = rest.iter().take_while(|b| b.is_ascii_whitespace()).count();
        self.at += space;
        rest.get(space).copied().ok_or(Head::More)
    }

    fn byte(&mut self, wanted: u8) -> Result<(), Head> {
        if self.peek()? != wanted {
            return Err(Head::Never);
        }
        self.at += 1;
        Ok(())
    }

    fn string(&mut self) -> Result<String, Head> {
        if self.peek()? != b'"' {
            return Err(Head::Never);
        }
        let mut scan = Scan::default();
        let rest = &self.text[self.at..];
        let end = rest.bytes().position(|byte| !scan.step(byte) && !scan.in_string()).ok_or(Head::More)?;
        self.at += end + 1;
        serde_json::from_str(&rest[..=end]).map_err(|_| Head::Never)
    }
}

/// Counts brackets outside strings.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Scan {
    depth: u32,
    string: bool,
    escaped: bool,
}

impl Scan {
    /// A scan that starts inside one object.
    pub(super) fn inside() -> Self {
        Self { depth: 1, ..Self::default() }
    }

    pub(super) fn in_string(&self) -> bool {
        self.string
    }

    /// Takes one byte; true when it closes the outermost bracket.
    pub(super) fn step(&mut self, byte: u8) -> bool {
        if self.string {
            let ends = byte == b'"' && !self.escaped;
            self.escaped = byte == b'\\' && !self.escaped;
            self.string = !ends;
            return false;
        }
        match byte {
            b'"' => self.string = true,
            b'{' | b'[' => self.depth = self.depth.saturating_add(1),
            b'}' | b']' => {
                self.depth = self.depth.saturating_sub(1);
                return self.depth == 0;
            }
            _ => {}
        }
        false
    }
}
