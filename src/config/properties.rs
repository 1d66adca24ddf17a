//! Java property files: `key=value`, `key: value`, `#` and `!` comments, continued lines,
//! escapes. Keeps where each value stands, so that what is wrong with it can be shown.

use std::fmt;

/// Where a value was given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    File { name: String, line: usize },
    CommandLine,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::File { name, line } => write!(f, "{name}:{line}"),
            Origin::CommandLine => f.write_str("--set"),
        }
    }
}

/// One setting as it was given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Property {
    pub key: String,
    pub value: String,
    pub origin: Origin,
}

/// What is wrong with a file's text.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name}:{line}: {what}")]
pub struct SyntaxError {
    pub name: String,
    pub line: usize,
    pub what: &'static str,
}

/// The settings of a file's text, in order; a later one wins over an earlier one of its key.
pub fn parse(name: &str, text: &str) -> Result<Vec<Property>, SyntaxError> {
    let mut found = Vec::new();
    let mut lines = text.lines().enumerate();
    while let Some((at, first)) = lines.next() {
        let line = at + 1;
        let mut logical = first.trim_start().to_owned();
        if logical.is_empty() || logical.starts_with(['#', '!']) {
            continue;
        }
        while is_continued(&logical) {
            logical.pop();
            match lines.next() {
                Some((_, next)) => logical.push_str(next.trim_start()),
                None => break,
            }
        }
        let error = |what| SyntaxError {
            name: name.to_owned(),
            line,
            what,
        };
        let (key, value) = split(&logical);
        let key = unescape(key).map_err(error)?;
        if key.is_empty() {
            return Err(error("a line without a key"));
        }
        let value = unescape(value).map_err(error)?.trim_end().to_owned();
        found.push(Property {
            key,
            value,
            origin: Origin::File {
                name: name.to_owned(),
                line,
            },
        });
    }
    Ok(found)
}

/// Ends with an odd number of backslashes.
fn is_continued(line: &str) -> bool {
    line.bytes().rev().take_while(|c| *c == b'\\').count() % 2 == 1
}

/// At the first unescaped `=`, `:` or blank; blanks around the separator belong to neither side.
fn split(line: &str) -> (&str, &str) {
    let mut escaped = false;
    let end = line
        .char_indices()
        .find(|(_, c)| {
            let stop = !escaped && matches!(c, '=' | ':' | ' ' | '\t');
            escaped = !escaped && *c == '\\';
            stop
        })
        .map_or(line.len(), |(at, _)| at);
    let rest = line[end..].trim_start();
    let value = rest.strip_prefix(['=', ':']).unwrap_or(rest).trim_start();
    (&line[..end], value)
}

fn unescape(text: &str) -> Result<String, &'static str> {
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        if c != '\\' {
            out.push(c);
            continue;
        }
        match chars.next() {
            Some('t') => out.push('\t'),
            Some('n') => out.push('\n'),
            Some('r') => out.push('\r'),
            Some('f') => out.push('\u{c}'),
            Some('u') => {
                let digits: String = chars.by_ref().take(4).collect();
                let code = u32::from_str_radix(&digits, 16)
                    .ok()
                    .filter(|_| digits.len() == 4);
                out.push(
                    code.and_then(char::from_u32)
                        .ok_or("\\u needs four hexadecimal digits")?,
                );
            }
            Some(other) => out.push(other),
            None => {}
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(text: &str) -> Vec<(String, String)> {
        parse("f", text)
            .unwrap()
            .into_iter()
            .map(|p| (p.key, p.value))
            .collect()
    }

    #[test]
    fn the_forms_of_java_properties_are_read() {
        let text = "# comment\n! comment\n\n a = 1 \nb:2\nc 3\nd=\n  e\\=f=x\\ty\nlong=a,\\\n  b\nu=\\u00e4\n";
        let expected = [
            ("a", "1"),
            ("b", "2"),
            ("c", "3"),
            ("d", ""),
            ("e=f", "x\ty"),
            ("long", "a,b"),
            ("u", "ä"),
        ];
        let expected: Vec<_> = expected
            .iter()
            .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
            .collect();
        assert_eq!(pairs(text), expected);
    }

    #[test]
    fn an_error_names_file_and_line() {
        let error = parse("server.properties", "a=1\nb=\\u00g0").unwrap_err();
        assert_eq!(
            error.to_string(),
            "server.properties:2: \\u needs four hexadecimal digits"
        );
        assert_eq!(parse("f", "=v").unwrap_err().line, 1);
        let third = &parse("f", "a=1\nb=2\\\n2\nc=3").unwrap()[2];
        assert_eq!(
            third.origin,
            Origin::File {
                name: "f".into(),
                line: 4
            }
        );
    }
}
