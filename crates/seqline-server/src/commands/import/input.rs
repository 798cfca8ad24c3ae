//! Reading lines, in chunks, without those that are done.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{BufRead, BufReader, Cursor, Read};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use crate::commands::file_failure;
use crate::failure::Failure;
use crate::limits::HEAD_BYTES;
use crate::store::import::{Fingerprint, Range};

/// A line with its number from 1, or what is wrong with it.
pub(super) type Line = (i64, Text);

/// The text of a line, or what is wrong with it.
type Text = Result<String, &'static str>;

/// Lines that are done in one transaction.
pub(super) struct Chunk {
    pub(super) first_line: i64,
    pub(super) last_line: i64,
    pub(super) lines: Vec<Line>,
    pub(super) bytes: u64,
}

/// A file or standard input.
pub(super) struct Input {
    reader: Box<dyn BufRead + Send>,
    file: Option<(PathBuf, u64)>,
}

impl Input {
    pub(super) fn open(name: &str) -> Result<Self, Failure> {
        if name == "-" {
            return Ok(Self { reader: Box::new(BufReader::new(std::io::stdin())), file: None });
        }
        let path = Path::new(name);
        let opened = || -> std::io::Result<Self> {
            let path = path.canonicalize()?;
            let file = File::open(&path)?;
            let length = file.metadata()?.len();
            Ok(Self { reader: Box::new(BufReader::new(file)), file: Some((path, length)) })
        };
        opened().map_err(|error| file_failure("read", path, &error))
    }

    /// Where the file is; `None` for standard input.
    pub(super) fn path(&self) -> Option<&Path> {
        self.file.as_ref().map(|(path, _)| path.as_path())
    }

    pub(super) fn total_bytes(&self) -> Option<u64> {
        self.file.as_ref().map(|(_, length)| *length)
    }

    /// The beginning. Reading goes on there. An input that ends within it has ended: what somebody adds meanwhile belongs to
    /// the next run, so that every line of an import is covered by its fingerprint or comes after a full one.
    pub(super) fn head(&mut self) -> Result<Head, Failure> {
        let mut head = Vec::new();
        let read = (&mut self.reader).take(HEAD_BYTES as u64).read_to_end(&mut head);
        read.map_err(|error| self.failure(&error))?;
        // Put it back in front: standard input cannot seek.
        let rest = std::mem::replace(&mut self.reader, Box::new(std::io::empty()));
        let again = Cursor::new(head.clone());
        self.reader = match head.len() < HEAD_BYTES {
            true => Box::new(again),
            false => Box::new(BufReader::new(again.chain(rest))),
        };
        Ok(Head(head))
    }

    fn failure(&self, error: &std::io::Error) -> Failure {
        file_failure("read", self.path().unwrap_or_else(|| Path::new("standard input")), error)
    }

    /// One line without its end, and how many bytes it took; `None` at the end. At most `limit` bytes of it are kept in memory.
    fn read_line(&mut self, limit: usize) -> Result<Option<(Text, u64)>, Failure> {
        let mut bytes = Vec::new();
        let read = (&mut self.reader).take(limit as u64 + 1).read_until(b'\n', &mut bytes);
        let mut length = read.map_err(|error| self.failure(&error))? as u64;
        if length == 0 {
            return Ok(None);
        }
        let complete = bytes.last() == Some(&b'\n');
        if complete {
            bytes.pop();
        } else if bytes.len() > limit {
            length += self.skip_line()?;
            return Ok(Some((Err("line is longer than --line-max-bytes"), length)));
        }
        if bytes.last() == Some(&b'\r') {
            bytes.pop();
        }
        Ok(Some((String::from_utf8(bytes).map_err(|_| "line is not UTF-8"), length)))
    }

    fn skip_line(&mut self) -> Result<u64, Failure> {
        let mut skipped = 0;
        loop {
            let buffer = match self.reader.fill_buf() {
                Ok(buffer) => buffer,
                Err(error) => return Err(file_failure("read", Path::new("the input"), &error)),
            };
            if buffer.is_empty() {
                return Ok(skipped);
            }
            let (length, ended) = match buffer.iter().position(|byte| *byte == b'\n') {
                Some(at) => (at + 1, true),
                None => (buffer.len(), false),
            };
            self.reader.consume(length);
            skipped += length as u64;
            if ended {
                return Ok(skipped);
            }
        }
    }
}

/// The beginning of an input.
pub(super) struct Head(Vec<u8>);

impl Head {
    pub(super) fn fingerprint(&self) -> Fingerprint {
        fingerprint(&self.0)
    }

    /// Whether an input with this fingerprint may have grown to this one.
    pub(super) fn begins_with(&self, known: &Fingerprint) -> bool {
        let length = usize::try_from(known.bytes).unwrap_or(usize::MAX);
        self.0.get(..length).is_some_and(|beginning| fingerprint(beginning) == *known)
    }
}

fn fingerprint(bytes: &[u8]) -> Fingerprint {
    let sha256 = Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect();
    Fingerprint { bytes: i32::try_from(bytes.len()).unwrap_or(i32::MAX), sha256 }
}

/// Which lines an earlier run has done: ranges in ascending order, without overlap.
#[derive(Debug, Default)]
pub(super) struct Done(VecDeque<Range>);

impl Done {
    pub(super) fn new(ranges: Vec<Range>) -> Self {
        Self(ranges.into())
    }

    pub(super) fn lines(&self) -> i64 {
        self.0.iter().map(|range| range.last_line - range.first_line + 1).sum()
    }

    pub(super) fn rejected(&self) -> i64 {
        self.0.iter().map(|range| range.rejected).sum()
    }

    /// Whether a line is done. Lines are asked for in ascending order.
    fn contains(&mut self, line: i64) -> bool {
        while self.0.front().is_some_and(|range| range.last_line < line) {
            self.0.pop_front();
        }
        self.0.front().is_some_and(|range| range.first_line <= line)
    }
}

/// Cuts the input into chunks.
pub(super) struct Chunks {
    input: Input,
    chunk_lines: usize,
    line_max_bytes: usize,
    done: Done,
    line: i64,
}

impl Chunks {
    pub(super) fn new(input: Input, chunk_lines: usize, line_max_bytes: usize, done: Done) -> Self {
        Self { input, chunk_lines, line_max_bytes, done, line: 0 }
    }

    /// The next lines that are not done, contiguous, at most a chunk; `None` at the end.
    pub(super) fn next(&mut self) -> Result<Option<Chunk>, Failure> {
        let mut chunk = Chunk { first_line: 0, last_line: 0, lines: Vec::new(), bytes: 0 };
        while chunk.lines.len() < self.chunk_lines {
            let Some((line, bytes)) = self.input.read_line(self.line_max_bytes)? else { break };
            self.line += 1;
            chunk.bytes += bytes;
            if self.done.contains(self.line) {
                if chunk.lines.is_empty() {
                    continue;
                }
                break;
            }
            if chunk.lines.is_empty() {
                chunk.first_line = self.line;
            }
            chunk.last_line = self.line;
            chunk.lines.push((self.line, line));
        }
        Ok((!chunk.lines.is_empty()).then_some(chunk))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn input(text: &'static [u8]) -> Input {
        Input { reader: Box::new(BufReader::with_capacity(3, text)), file: None }
    }

    fn range(first_line: i64, last_line: i64) -> Range {
        Range { first_line, last_line, imported: last_line - first_line + 1, rejected: 0 }
    }

    fn all(mut chunks: Chunks) -> Vec<(i64, i64, Vec<Line>)> {
        let mut found = Vec::new();
        while let Some(chunk) = chunks.next().unwrap() {
            found.push((chunk.first_line, chunk.last_line, chunk.lines));
        }
        found
    }

    #[test]
    fn lines_are_numbered_and_cut_into_chunks() {
        let chunks = all(Chunks::new(input(b"a\nb\r\n\nd"), 2, 10, Done::default()));
        assert_eq!(
            chunks,
            [
                (1, 2, vec![(1, Ok("a".into())), (2, Ok("b".into()))]),
                (3, 4, vec![(3, Ok(String::new())), (4, Ok("d".into()))]),
            ]
        );
    }

    #[test]
    fn a_line_that_is_too_long_or_not_text_is_one_bad_line() {
        let chunks = all(Chunks::new(input(b"123456\n\xff\n12345\nlast"), 9, 5, Done::default()));
        let lines: Vec<Line> = chunks.into_iter().flat_map(|(_, _, lines)| lines).collect();
        assert_eq!(lines[0], (1, Err("line is longer than --line-max-bytes")));
        assert_eq!(lines[1], (2, Err("line is not UTF-8")));
        assert_eq!(lines[2], (3, Ok("12345".into())));
        assert_eq!(lines[3], (4, Ok("last".into())));
    }

    #[test]
    fn lines_that_are_done_are_skipped_and_never_inside_a_chunk() {
        let done = Done::new(vec![range(2, 3), range(6, 6)]);
        assert_eq!(done.lines(), 3);
        let mut chunks = Chunks::new(input(b"1\n2\n3\n4\n5\n6\n7\n"), 10, 10, done);
        let mut bounds = Vec::new();
        while let Some(chunk) = chunks.next().unwrap() {
            assert_eq!(chunk.lines.len() as i64, chunk.last_line - chunk.first_line + 1);
            bounds.push((chunk.first_line, chunk.last_line));
        }
        assert_eq!(bounds, [(1, 1), (4, 5), (7, 7)]);
    }

    #[test]
    fn the_fingerprint_leaves_the_input_as_it_was() {
        let mut read = input(b"first\nsecond\n");
        let (head, again) = (read.head().unwrap(), read.head().unwrap());
        assert_eq!((head.fingerprint().bytes, head.fingerprint()), (13, again.fingerprint()));
        assert_eq!(all(Chunks::new(read, 9, 20, Done::default()))[0].2.len(), 2);
    }

    #[test]
    fn a_fingerprint_fits_what_an_input_has_grown_to_and_nothing_else() {
        let head = |text| input(text).head().unwrap();
        let known = head(b"first\n").fingerprint();
        assert!(head(b"first\n").begins_with(&known) && head(b"first\nsecond\n").begins_with(&known));
        assert!(!head(b"first").begins_with(&known) && !head(b"other\nsecond\n").begins_with(&known));
        assert!(head(b"first\n").begins_with(&head(b"").fingerprint()));
    }
}
