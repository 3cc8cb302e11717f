//! Server-sent events: the data of each, from bytes that are cut anywhere.

/// The events of one stream.
#[derive(Debug, Default)]
pub(super) struct Events {
    /// The present line, as far as it is here.
    line: Vec<u8>,
    /// The data of the present event.
    data: Vec<u8>,
    /// The present event has data.
    any: bool,
    /// The last byte was a carriage return, so that a line feed that follows ends no line.
    after_return: bool,
}

impl Events {
    /// Takes bytes and hands on the data of every event that they complete.
    pub(super) fn push(&mut self, bytes: &[u8], on_data: &mut dyn FnMut(&str)) {
        for &byte in bytes {
            match byte {
                b'\n' if self.after_return => self.after_return = false,
                b'\n' | b'\r' => {
                    self.after_return = byte == b'\r';
                    self.end_line(on_data);
                }
                _ => {
                    self.after_return = false;
                    self.line.push(byte);
                }
            }
        }
    }

    fn end_line(&mut self, on_data: &mut dyn FnMut(&str)) {
        if self.line.is_empty() {
            if std::mem::take(&mut self.any) {
                on_data(&String::from_utf8_lossy(&self.data));
            }
            self.data.clear();
        } else if let Some(data) = self.line.strip_prefix(b"data:") {
            if self.any {
                self.data.push(b'\n');
            }
            self.data.extend_from_slice(data.strip_prefix(b" ").unwrap_or(data));
            self.any = true;
        }
        // Comments, and the fields `event`, `id` and `retry`, say nothing that counts here.
        self.line.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn events(text: &str, step: usize) -> Vec<String> {
        let (mut events, mut seen) = (Events::default(), Vec::new());
        text.as_bytes().chunks(step).for_each(|p| events.push(p, &mut |data| seen.push(data.to_owned())));
        seen
    }

    #[test]
    fn events_are_whole_wherever_the_network_cuts() {
        let text = ": hello\n\ndata: {\"a\":\"ü\"}\r\n\r\nevent: x\ndata:one\ndata: two\n\nid: 3\n\ndata: [DONE]\n\n";
        for step in 1..text.len() + 1 {
            assert_eq!(events(text, step), ["{\"a\":\"ü\"}", "one\ntwo", "[DONE]"], "{step}");
        }
        assert_eq!(events("data: cut off\n", 1), [""; 0], "an event without its empty line has not come");
        assert_eq!(events("data:\n\ndata: a\r\rdata: b\r\r", 3), ["", "a", "b"]);
    }
}
