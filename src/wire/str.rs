//! A string of the protocol: UTF-8 over a shared slice of the frame it came in.
//!
//! Any core; cloning counts a reference and copies nothing. Never holds invalid UTF-8: what a
//! client sent malformed is replaced on entry, the way Kafka's own decoder does.

use std::borrow::{Borrow, Cow};
use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::Deref;

use bytes::Bytes;

/// UTF-8 text, at most 32,767 bytes when it is put on the wire (protocol type `STRING`).
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Str(Bytes);

impl Str {
    pub const fn from_static(text: &'static str) -> Str {
        Str(Bytes::from_static(text.as_bytes()))
    }

    /// Takes the slice as text. Malformed sequences become U+FFFD, at the price of a copy of at
    /// most three times the length.
    pub fn from_utf8_lossy(bytes: Bytes) -> Str {
        match String::from_utf8_lossy(&bytes) {
            Cow::Borrowed(_) => Str(bytes),
            Cow::Owned(replaced) => Str(Bytes::from(replaced.into_bytes())),
        }
    }

    /// The text if the slice is UTF-8 already.
    pub fn from_utf8(bytes: Bytes) -> Result<Str, std::str::Utf8Error> {
        std::str::from_utf8(&bytes)?;
        Ok(Str(bytes))
    }

    pub fn as_str(&self) -> &str {
        self
    }

    /// The bytes, sharing the frame's memory.
    pub fn as_bytes_shared(&self) -> &Bytes {
        &self.0
    }

    /// A copy that no longer keeps the frame alive: for what is stored beyond the request.
    pub fn detached(&self) -> Str {
        Str(Bytes::copy_from_slice(&self.0))
    }
}

impl Deref for Str {
    type Target = str;

    #[inline]
    #[allow(unsafe_code)]
    fn deref(&self) -> &str {
        // SAFETY: every constructor checked the bytes or took them from a `str`/`String`, and
        // `Bytes` is immutable.
        unsafe { std::str::from_utf8_unchecked(&self.0) }
    }
}

impl AsRef<str> for Str {
    fn as_ref(&self) -> &str {
        self
    }
}

impl Borrow<str> for Str {
    fn borrow(&self) -> &str {
        self
    }
}

// As `str` hashes, so that a map keyed by `Str` can be asked with a `&str`.
impl Hash for Str {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.as_str().hash(state);
    }
}

impl From<&str> for Str {
    fn from(text: &str) -> Str {
        Str(Bytes::copy_from_slice(text.as_bytes()))
    }
}

impl From<String> for Str {
    fn from(text: String) -> Str {
        Str(Bytes::from(text.into_bytes()))
    }
}

impl From<&String> for Str {
    fn from(text: &String) -> Str {
        Str::from(text.as_str())
    }
}

impl From<Str> for String {
    fn from(text: Str) -> String {
        text.as_str().to_owned()
    }
}

impl PartialEq<str> for Str {
    fn eq(&self, other: &str) -> bool {
        self.as_str() == other
    }
}

impl PartialEq<&str> for Str {
    fn eq(&self, other: &&str) -> bool {
        self.as_str() == *other
    }
}

impl PartialEq<String> for Str {
    fn eq(&self, other: &String) -> bool {
        self.as_str() == other
    }
}

impl fmt::Display for Str {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self.as_str(), f)
    }
}

impl fmt::Debug for Str {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    #[test]
    fn a_map_keyed_by_str_is_asked_with_a_plain_str() {
        let mut map = HashMap::new();
        map.insert(Str::from("orders"), 7);
        assert_eq!(map.get("orders"), Some(&7));
        assert_eq!(map.get("order"), None);
    }

    #[test]
    fn malformed_utf8_is_replaced_and_never_kept() {
        let text = Str::from_utf8_lossy(Bytes::from_static(b"a\xff\xfeb"));
        assert_eq!(text, "a\u{fffd}\u{fffd}b");
        assert!(Str::from_utf8(Bytes::from_static(b"\xff")).is_err());
    }

    #[test]
    fn valid_text_shares_the_frame() {
        let frame = Bytes::from(b"..topic..".to_vec());
        let text = Str::from_utf8_lossy(frame.slice(2..7));
        assert_eq!(text, "topic");
        assert_eq!(text.as_bytes_shared().as_ptr(), frame[2..].as_ptr());
    }
}
