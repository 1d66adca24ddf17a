//! Listener addresses: `NAME://host:port`, comma separated, and their security protocols. Pure.

/// A security protocol, as listeners map to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SecurityProtocol {
    Plaintext,
    Ssl,
    SaslPlaintext,
    SaslSsl,
}

impl SecurityProtocol {
    /// The number in a broker's registration.
    pub fn id(self) -> i16 {
        self as i16
    }

    pub fn parse(name: &str) -> Option<SecurityProtocol> {
        Some(match name {
            "PLAINTEXT" => SecurityProtocol::Plaintext,
            "SSL" => SecurityProtocol::Ssl,
            "SASL_PLAINTEXT" => SecurityProtocol::SaslPlaintext,
            "SASL_SSL" => SecurityProtocol::SaslSsl,
            _ => return None,
        })
    }
}

/// One listener as configured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listener {
    pub name: String,
    /// Empty: every address of the host.
    pub host: String,
    pub port: u16,
}

/// Reads a list of listeners; says what is wrong with the first that is none.
pub fn parse(text: &str) -> Result<Vec<Listener>, String> {
    let mut listeners: Vec<Listener> = Vec::new();
    for item in super::definition::items(text) {
        let listener = parse_one(item)?;
        if listeners.iter().any(|other| other.name == listener.name) {
            return Err(format!(
                "Each listener must have a different name: {} stands twice",
                listener.name
            ));
        }
        listeners.push(listener);
    }
    Ok(listeners)
}

fn parse_one(item: &str) -> Result<Listener, String> {
    let form = || format!("'{item}' is not of the form NAME://host:port");
    let (name, address) = item.split_once("://").ok_or_else(form)?;
    let (host, port) = address.rsplit_once(':').ok_or_else(form)?;
    let port = port.parse().map_err(|_| form())?;
    if name.is_empty() {
        return Err(form());
    }
    let host = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'))
        .unwrap_or(host);
    Ok(Listener {
        name: name.to_ascii_uppercase(),
        host: host.to_owned(),
        port,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listeners_are_read_with_names_hosts_and_ports() {
        let listeners = parse("PLAINTEXT://:9092, internal://[::1]:0").unwrap();
        assert_eq!(
            listeners[0],
            Listener {
                name: "PLAINTEXT".into(),
                host: String::new(),
                port: 9092
            }
        );
        assert_eq!(
            listeners[1],
            Listener {
                name: "INTERNAL".into(),
                host: "::1".into(),
                port: 0
            }
        );
        for bad in [
            "localhost:9092",
            "A://x",
            "A://x:99999",
            "://x:1",
            "A://:1,A://:2",
        ] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
