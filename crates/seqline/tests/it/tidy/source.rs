//! Just enough of a reader of Rust and SQL to look for words in the right places.

/// A string literal and the line where it begins.
pub(super) struct Literal {
    pub(super) line: usize,
    pub(super) text: String,
}

/// A source file taken apart: code without comments and without the contents of literals, and the literals.
pub(super) struct Source {
    pub(super) code: String,
    pub(super) literals: Vec<Literal>,
}

impl Source {
    /// Tests at the end of the file are left out.
    pub(super) fn parse(text: &str) -> Self {
        let text = text.find("#[cfg(test)]\nmod ").map_or(text, |tests| &text[..tests]);
        let mut source = Self { code: String::new(), literals: Vec::new() };
        let (mut rest, mut line) = (text, 1);
        while !rest.is_empty() {
            let length = source.take(rest, line);
            line += rest[..length].matches('\n').count();
            rest = &rest[length..];
        }
        source
    }

    /// Takes the comment, literal or character at the beginning and returns how long it is.
    fn take(&mut self, rest: &str, line: usize) -> usize {
        if rest.starts_with("//") {
            return rest.find('\n').unwrap_or(rest.len());
        }
        if rest.starts_with("/*") {
            return rest.find("*/").map_or(rest.len(), |end| end + 2);
        }
        let in_word = self.code.ends_with(|c: char| c.is_alphanumeric() || c == '_');
        let hashes = rest[1..].bytes().take_while(|byte| *byte == b'#').count();
        if rest.starts_with('r') && !in_word && rest[1 + hashes..].starts_with('"') {
            let begin = hashes + 2;
            let end = format!("\"{}", "#".repeat(hashes));
            let length = rest[begin..].find(&end).unwrap_or(rest.len() - begin);
            return begin + self.keep(&rest[begin..begin + length], line) + end.len();
        }
        if let Some(quoted) = rest.strip_prefix('"') {
            return 1 + self.keep(&quoted[..quoted_length(quoted)], line) + 1;
        }
        // A character, unless it is a lifetime.
        if let Some(character) = rest.strip_prefix('\'') {
            let escaped = character.starts_with('\\');
            if escaped || character.chars().nth(1) == Some('\'') {
                let skip = if escaped { 2 } else { character.chars().next().map_or(0, char::len_utf8) };
                return 1 + skip + character[skip..].find('\'').map_or(0, |end| end + 1);
            }
        }
        let Some(next) = rest.chars().next() else { return 0 };
        self.code.push(next);
        next.len_utf8()
    }

    fn keep(&mut self, text: &str, line: usize) -> usize {
        self.literals.push(Literal { line, text: text.to_owned() });
        self.code.push_str("\"\"");
        text.len()
    }
}

/// Up to the closing quote.
fn quoted_length(text: &str) -> usize {
    let mut escaped = false;
    for (at, character) in text.char_indices() {
        match character {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => return at,
            _ => {}
        }
    }
    text.len()
}

/// SQL without its comments, as words with their schema and single other characters.
pub(super) fn sql_words(sql: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    let mut open = false;
    for line in sql.lines() {
        let line = line.find("--").map_or(line, |comment| &line[..comment]);
        for character in line.chars() {
            let of_word = character.is_alphanumeric() || matches!(character, '_' | '.');
            match words.last_mut() {
                Some(word) if of_word && open => word.push(character),
                _ if character.is_whitespace() || character == '\'' => {}
                _ => words.push(character.to_string()),
            }
            open = of_word;
        }
        open = false;
    }
    words
}

#[test]
fn comments_and_literals_are_told_from_code() {
    let source = Source::parse(
        "fn a<'x>() { // \"no\"\n let b = \"it's \\\"SQL\\\"\"; '\"'; '\\''; r#\"raw \"x\"\"# }\n#[cfg(test)]\nmod tests { \"gone\" }",
    );
    let texts: Vec<(usize, &str)> =
        source.literals.iter().map(|literal| (literal.line, literal.text.as_str())).collect();
    assert_eq!(texts, [(2, "it's \\\"SQL\\\""), (2, "raw \"x\"")]);
    assert!(source.code.starts_with("fn a<'x>() { \n let b = \"\"; ; ; \"\" }"), "{}", source.code);
}

#[test]
fn sql_is_split_into_words_with_their_schema() {
    let words = sql_words("SELECT seqline.head() -- not this\nFROM 'a' x");
    assert_eq!(words, ["SELECT", "seqline.head", "(", ")", "FROM", "a", "x"]);
}
