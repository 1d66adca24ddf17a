//! What a setting is: its type, default and limits, as Kafka's ConfigDef has them; and the check
//! of one value. Pure.

use std::fmt;

/// The type of a setting, with the values it allows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    Boolean,
    Str,
    /// One of these.
    OneOf(&'static [&'static str]),
    /// int32 within the bounds.
    Int(i32, i32),
    /// int32: the first, or within the bounds of the others.
    IntOr(i32, i32, i32),
    /// int16 within the bounds.
    Short(i16, i16),
    /// int64 within the bounds.
    Long(i64, i64),
    Double(f64, f64),
    /// Comma separated.
    List,
    /// Comma separated, each one of these.
    ListOf(&'static [&'static str]),
    /// Replicas as `partition:broker`, comma separated, or `*`.
    Replicas,
    Class,
    Password,
}

impl Kind {
    /// DescribeConfigs' config_type.
    pub fn code(self) -> i8 {
        match self {
            Kind::Boolean => 1,
            Kind::Str | Kind::OneOf(_) => 2,
            Kind::Int(..) | Kind::IntOr(..) => 3,
            Kind::Short(..) => 4,
            Kind::Long(..) => 5,
            Kind::Double(..) => 6,
            Kind::List | Kind::ListOf(_) | Kind::Replicas => 7,
            Kind::Class => 8,
            Kind::Password => 9,
        }
    }

    pub fn is_list(self) -> bool {
        matches!(self, Kind::List | Kind::ListOf(_) | Kind::Replicas)
    }
}

/// Whether a setting of brokers may change while they run, by IncrementalAlterConfigs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Update {
    Never,
    /// For one broker only.
    PerBroker,
    /// For one broker or for all.
    ClusterWide,
}

/// One setting of brokers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Definition {
    pub name: &'static str,
    pub kind: Kind,
    /// `None` is Kafka's null.
    pub default: Option<&'static str>,
    pub update: Update,
    /// This broker acts on it; others are accepted so that Kafka's files load, and reported.
    pub used: bool,
    /// Told to no tool unless it was given.
    pub hidden: bool,
    pub doc: &'static str,
}

impl Definition {
    /// Its value must not be shown.
    pub fn is_sensitive(&self) -> bool {
        self.kind == Kind::Password
    }

    pub fn is_dynamic(&self) -> bool {
        self.update != Update::Never
    }
}

/// A value that its setting does not allow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadValue(String);

impl fmt::Display for BadValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Checks `value` against `kind`, in the words Kafka's clients show their users.
pub fn check(name: &str, kind: Kind, value: &str) -> Result<(), BadValue> {
    let bad = |why: String| {
        Err(BadValue(format!(
            "Invalid value {value} for configuration {name}: {why}"
        )))
    };
    let value = value.trim();
    fn within<T: PartialOrd + fmt::Display>(value: T, least: T, most: T) -> Option<String> {
        if value < least {
            Some(format!("Value must be at least {least}"))
        } else if value > most {
            Some(format!("Value must be no more than {most}"))
        } else {
            None
        }
    }
    let out_of_bounds = match kind {
        Kind::Boolean => {
            let known = value.eq_ignore_ascii_case("true") || value.eq_ignore_ascii_case("false");
            return if known {
                Ok(())
            } else {
                bad("Expected value to be either true or false".into())
            };
        }
        Kind::Int(least, most) => match value.parse() {
            Ok(number) => within(number, least, most),
            Err(_) => return bad("Not a number of type INT".into()),
        },
        Kind::IntOr(other, least, most) => match value.parse::<i32>() {
            Ok(number) if number == other || (least..=most).contains(&number) => None,
            Ok(_) => Some(format!(
                "Value must be between {least} and {most} or equal to {other}"
            )),
            Err(_) => return bad("Not a number of type INT".into()),
        },
        Kind::Short(least, most) => match value.parse() {
            Ok(number) => within(number, least, most),
            Err(_) => return bad("Not a number of type SHORT".into()),
        },
        Kind::Long(least, most) => match value.parse() {
            Ok(number) => within(number, least, most),
            Err(_) => return bad("Not a number of type LONG".into()),
        },
        Kind::Double(least, most) => match value.parse::<f64>() {
            Ok(number) if number.is_finite() => within(number, least, most),
            _ => return bad("Not a number of type DOUBLE".into()),
        },
        Kind::OneOf(allowed) => {
            return if allowed.contains(&value) {
                Ok(())
            } else {
                bad(format!("String must be one of: {}", allowed.join(", ")))
            };
        }
        Kind::ListOf(allowed) => {
            if value.is_empty() {
                return Ok(());
            }
            // One that comes twice counts once.
            let mut given = value.split(',').map(str::trim);
            return match given.find(|item| !allowed.contains(item)) {
                Some("") => Err(BadValue(format!(
                    "Configuration '{name}' values must not be empty."
                ))),
                Some(_) => bad(format!("String must be one of: {}", allowed.join(", "))),
                None => Ok(()),
            };
        }
        Kind::Replicas => {
            return if value == "*" || items(value).all(is_replica) {
                Ok(())
            } else {
                bad(format!(
                    "{name} must be the literal '*' or a list of replicas in the following format: [partitionId]:[brokerId],[partitionId]:[brokerId],..."
                ))
            };
        }
        Kind::Str | Kind::List | Kind::Class | Kind::Password => None,
    };
    match out_of_bounds {
        Some(why) => bad(why),
        None => Ok(()),
    }
}

/// `partition:broker`
fn is_replica(item: &str) -> bool {
    item.split_once(':').is_some_and(|(partition, broker)| {
        partition.parse::<u32>().is_ok() && broker.parse::<u32>().is_ok()
    })
}

/// A value as tools are shown it: blanks around it and around the items of a list are not part of
/// it, and a boolean is in small letters.
pub fn shown(kind: Kind, value: &str) -> String {
    match kind {
        _ if kind.is_list() => items(value).collect::<Vec<_>>().join(","),
        Kind::Boolean => value.trim().to_ascii_lowercase(),
        _ => value.trim().to_owned(),
    }
}

/// The items of a comma-separated list.
pub fn items(value: &str) -> impl Iterator<Item = &str> {
    value
        .split(',')
        .map(str::trim)
        .filter(|item| !item.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_out_of_bounds_are_refused_with_the_bound() {
        let say = |kind, value| check("k", kind, value).unwrap_err().to_string();
        assert_eq!(
            say(Kind::Int(1, 9), "0"),
            "Invalid value 0 for configuration k: Value must be at least 1"
        );
        assert!(say(Kind::Int(1, 9), "10").ends_with("no more than 9"));
        assert!(say(Kind::Long(0, i64::MAX), "x").ends_with("LONG"));
        assert!(say(Kind::Int(0, i32::MAX), "2147483648").ends_with("INT"));
        assert!(say(Kind::Boolean, "yes").contains("true or false"));
        assert!(say(Kind::OneOf(&["a", "b"]), "c").ends_with("a, b"));
        assert_eq!(
            say(Kind::IntOr(-1, 1, 9), "0"),
            "Invalid value 0 for configuration k: Value must be between 1 and 9 or equal to -1"
        );
        assert!(check("k", Kind::IntOr(-1, 1, 9), "-1").is_ok());
        for bad in ["x", "nan", "inf", ""] {
            assert!(
                say(Kind::Double(0.0, 1.0), bad).ends_with("DOUBLE"),
                "{bad}"
            );
        }
        assert!(say(Kind::Double(0.0, 1.0), "1.5").ends_with("no more than 1"));
        for bad in ["x", "1", "1:x", "-1:2", "*,1:2"] {
            assert!(
                say(Kind::Replicas, bad).contains("the literal '*'"),
                "{bad}"
            );
        }
        for good in ["", "*", "0:1,1:2"] {
            assert!(check("k", Kind::Replicas, good).is_ok(), "{good}");
        }
        let list = |value| check("k", Kind::ListOf(&["compact", "delete"]), value);
        assert!(list("compact, delete").is_ok() && list("").is_ok());
        let said = |value| list(value).unwrap_err().to_string();
        assert!(list("compact,delete, compact").is_ok());
        assert_eq!(
            said("compact,,delete"),
            "Configuration 'k' values must not be empty."
        );
        assert!(said("compact,purge").ends_with("String must be one of: compact, delete"));
    }

    #[test]
    fn values_are_shown_without_what_does_not_belong_to_them() {
        assert_eq!(shown(Kind::List, " a , b,"), "a,b");
        assert_eq!(shown(Kind::Boolean, "FALSE "), "false");
        assert_eq!(shown(Kind::Int(0, 9), " 7 "), "7");
        assert_eq!(shown(Kind::Str, "a , b"), "a , b");
    }
}
