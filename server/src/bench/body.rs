//! Where the body of an answer ends, and what in it is no content: sizes of chunks, trailers.

/// A body that is being read.
#[derive(Debug)]
pub(super) struct Body(State);

#[derive(Debug)]
enum State {
    /// So many bytes are missing.
    Sized(u64),
    /// All that comes.
    UntilClose,
    /// The line with the size of a chunk; so much of it is here.
    Size(Vec<u8>),
    /// So many bytes of a chunk are missing, its line end included.
    Chunk(u64),
    /// The lines after the last chunk; the present one has so many bytes.
    Trailer(usize),
    Done,
}

/// The longest line with a size.
const MOST_LINE: usize = 4096;

impl Body {
    /// A body of known length.
    pub(super) fn sized(length: u64) -> Self {
        Body(if length == 0 { State::Done } else { State::Sized(length) })
    }

    /// A body in chunks.
    pub(super) fn chunked() -> Self {
        Body(State::Size(Vec::new()))
    }

    /// A body that ends with the connection.
    pub(super) fn until_close() -> Self {
        Body(State::UntilClose)
    }

    /// Whether it ends with the connection.
    pub(super) fn is_until_close(&self) -> bool {
        matches!(self.0, State::UntilClose)
    }

    /// Takes bytes of the connection and hands on the content; true once the body is whole.
    ///
    /// # Errors
    /// When they are no chunks.
    pub(super) fn push(&mut self, mut bytes: &[u8], sink: &mut dyn FnMut(&[u8])) -> Result<bool, String> {
        while !bytes.is_empty() {
            match &mut self.0 {
                State::Done => return Ok(true),
                State::UntilClose => {
                    sink(bytes);
                    bytes = &[];
                }
                State::Sized(left) => {
                    let (content, rest) = bytes.split_at(bytes.len().min(*left as usize));
                    sink(content);
                    *left -= content.len() as u64;
                    bytes = rest;
                    if *left == 0 {
                        self.0 = State::Done;
                    }
                }
                State::Size(line) => {
                    line.push(bytes[0]);
                    bytes = &bytes[1..];
                    if line.ends_with(b"\n") {
                        let size = match httparse::parse_chunk_size(line) {
                            Ok(httparse::Status::Complete((_, size))) => size,
                            _ => return Err("a chunk has no size".into()),
                        };
                        self.0 = if size == 0 { State::Trailer(0) } else { State::Chunk(size + 2) };
                    } else if line.len() > MOST_LINE {
                        return Err("a chunk has no size".into());
                    }
                }
                State::Chunk(left) => {
                    let (part, rest) = bytes.split_at(bytes.len().min(*left as usize));
                    // The last two bytes are the line end.
                    let content = (part.len() as u64).min(left.saturating_sub(2)) as usize;
                    if content > 0 {
                        sink(&part[..content]);
                    }
                    *left -= part.len() as u64;
                    bytes = rest;
                    if *left == 0 {
                        self.0 = State::Size(Vec::new());
                    }
                }
                State::Trailer(length) => {
                    match bytes[0] {
                        b'\n' if *length == 0 => self.0 = State::Done,
                        b'\n' => *length = 0,
                        b'\r' => {}
                        _ => *length += 1,
                    }
                    bytes = &bytes[1..];
                }
            }
        }
        Ok(matches!(self.0, State::Done))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The content of `text` in pieces of `step` bytes, and after how many bytes it was whole.
    fn content(mut body: Body, text: &str, step: usize) -> (String, Option<usize>) {
        let (mut out, mut seen) = (Vec::new(), 0);
        for piece in text.as_bytes().chunks(step) {
            seen += piece.len();
            if body.push(piece, &mut |bytes| out.extend_from_slice(bytes)).expect("chunks") {
                return (String::from_utf8(out).expect("UTF-8"), Some(seen));
            }
        }
        (String::from_utf8(out).expect("UTF-8"), None)
    }

    #[test]
    fn chunks_are_joined_wherever_the_network_cuts() {
        let text = "5\r\nhello\r\n7;x=y\r\n, world\r\n0\r\nTrailer: a\r\n\r\n";
        for step in 1..text.len() + 1 {
            let (out, whole) = content(Body::chunked(), text, step);
            assert_eq!(out, "hello, world", "{step}");
            assert!(whole.is_some_and(|n| n == text.len()), "{step}: {whole:?}");
        }
        assert_eq!(content(Body::chunked(), "5\r\nhel", 2), ("hel".into(), None));
        let mut body = Body::chunked();
        assert!(body.push(b"xyz\r\n", &mut |_| ()).is_err());
    }

    #[test]
    fn a_length_ends_the_body_and_a_close_does_not_count() {
        assert_eq!(content(Body::sized(4), "abcdef", 3), ("abcd".into(), Some(6)));
        assert_eq!(content(Body::until_close(), "abc", 2), ("abc".into(), None));
        assert_eq!(Body::sized(0).push(b"", &mut |_| ()), Ok(true));
    }
}
