//! Arguments of the form `KEY=VALUE`.

/// For clap: splits at the first `=`; the value may be empty and may hold more of them.
pub(super) fn key_value(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.trim().is_empty() => {
            Ok((key.trim().to_owned(), value.to_owned()))
        }
        _ => Err("expected KEY=VALUE".to_owned()),
    }
}

/// For clap: settings separated by commas, where a value in brackets may hold commas itself:
/// `a=1,b=[x,y]`.
pub(super) fn settings(text: &str) -> Result<Vec<(String, String)>, String> {
    let mut depth = 0_i32;
    let parts = text.split(|letter| {
        match letter {
            '[' => depth += 1,
            ']' => depth -= 1,
            _ => {}
        }
        letter == ',' && depth <= 0
    });
    parts
        .map(|part| {
            let (key, value) = key_value(part)?;
            let inner = value
                .strip_prefix('[')
                .and_then(|value| value.strip_suffix(']'));
            Ok((key, inner.map_or_else(|| value.clone(), str::to_owned)))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(key: &str, value: &str) -> (String, String) {
        (key.to_owned(), value.to_owned())
    }

    #[test]
    fn a_value_keeps_its_own_equals_signs() {
        assert_eq!(key_value("a=b=c"), Ok(pair("a", "b=c")));
        assert_eq!(key_value("a="), Ok(pair("a", "")));
        assert!(key_value("a").is_err());
        assert!(key_value("=b").is_err());
    }

    #[test]
    fn commas_in_brackets_do_not_split_a_setting() {
        let read = settings("cleanup.policy=[compact,delete],retention.ms=5");
        let want = vec![
            pair("cleanup.policy", "compact,delete"),
            pair("retention.ms", "5"),
        ];
        assert_eq!(read, Ok(want));
        assert!(settings("a=1,b").is_err());
    }
}
