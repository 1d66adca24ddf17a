//! What a node is and where its controllers are: `process.roles`, the listeners of controllers and
//! `controller.quorum.voters`. Pure; the rules between these settings are Kafka's.

use super::definition::items;
use super::listeners::Listener;
use crate::types::NodeId;

/// What this node is (`process.roles`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Roles {
    pub broker: bool,
    pub controller: bool,
}

/// One controller as `controller.quorum.voters` names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Voter {
    pub id: NodeId,
    pub host: String,
    pub port: u16,
}

/// The quorum as this node's settings describe it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quorum {
    pub roles: Roles,
    /// Where this node listens as a controller. Empty for a node that is its own cluster.
    pub listeners: Vec<Listener>,
    /// `controller.listener.names`: brokers reach controllers by the first.
    pub listener_names: Vec<String>,
    pub voters: Vec<Voter>,
    /// `controller.quorum.bootstrap.servers`: addresses of controllers, not known by id.
    pub bootstrap: Vec<(String, u16)>,
}

/// The settings a [`Quorum`] is made of, as they were given.
pub struct Given<'a> {
    pub roles: Option<&'a str>,
    pub node: NodeId,
    pub listeners: Vec<Listener>,
    pub listener_names: Vec<String>,
    pub voters: &'a str,
    pub bootstrap: &'a str,
}

impl Quorum {
    /// The setting that is wrong and what is wrong with it, if the settings contradict each other.
    pub fn new(given: Given<'_>) -> Result<Quorum, (&'static str, String)> {
        let roles = match given.roles.map(str::trim) {
            None | Some("") => Roles {
                broker: true,
                controller: true,
            },
            Some(text) => Roles {
                broker: items(text).any(|role| role == "broker"),
                controller: items(text).any(|role| role == "controller"),
            },
        };
        let voters =
            parse_voters(given.voters).map_err(|what| ("controller.quorum.voters", what))?;
        let bootstrap = parse_addresses(given.bootstrap)
            .map_err(|what| ("controller.quorum.bootstrap.servers", what))?;
        let quorum = Quorum {
            roles,
            listeners: given.listeners,
            listener_names: given.listener_names,
            voters,
            bootstrap,
        };
        quorum.check(given.node)?;
        Ok(quorum)
    }

    fn check(&self, node: NodeId) -> Result<(), (&'static str, String)> {
        let names = "controller.listener.names";
        let is_voter = self.voters.iter().any(|voter| voter.id == node);
        if self.roles.controller {
            if !self.voters.is_empty() && !is_voter {
                let what = format!(
                    "If process.roles contains the 'controller' role, the node id {} must be included in the set of voters",
                    node.0
                );
                return Err(("controller.quorum.voters", what));
            }
            if !self.is_alone(node) && self.listeners.is_empty() {
                let what =
                    "a controller of several needs a listener that controller.listener.names names";
                return Err((names, what.into()));
            }
            // One address is this node's own, as in Kafka's sample settings of a lone node.
            if self.voters.is_empty() && self.bootstrap.len() > 1 {
                let what = "several controllers are named by controller.quorum.voters: a set of controllers that changes at run time (kraft.version 1) is not available here";
                return Err(("controller.quorum.bootstrap.servers", what.into()));
            }
        } else {
            if is_voter {
                let what = format!(
                    "If process.roles contains just the 'broker' role, the node id {} must not be included in the set of voters",
                    node.0
                );
                return Err(("controller.quorum.voters", what));
            }
            if self.voters.is_empty() && self.bootstrap.is_empty() {
                let what = "a broker that is no controller needs controller.quorum.voters or controller.quorum.bootstrap.servers";
                return Err(("controller.quorum.voters", what.into()));
            }
            if self.listener_names.is_empty() {
                let what = "controller.listener.names must contain at least one value when running KRaft with just the broker role";
                return Err((names, what.into()));
            }
            if !self.listeners.is_empty() {
                let what = "listeners must not contain the controller's listener when process.roles=broker";
                return Err(("listeners", what.into()));
            }
        }
        Ok(())
    }

    /// Whether the node is the only controller of its cluster: it decides alone.
    pub fn is_alone(&self, node: NodeId) -> bool {
        self.roles.controller && self.voters.iter().all(|voter| voter.id == node)
    }
}

fn parse_voters(text: &str) -> Result<Vec<Voter>, String> {
    let mut voters: Vec<Voter> = Vec::new();
    for item in items(text) {
        let form = || format!("'{item}' is not of the form id@host:port");
        let (id, address) = item.split_once('@').ok_or_else(form)?;
        let id = id.trim().parse::<i32>().ok().filter(|id| *id >= 0);
        let id = NodeId(id.ok_or_else(form)?);
        let (host, port) = parse_address(address).ok_or_else(form)?;
        if port == 0 {
            return Err(format!(
                "'{item}': voters need a port that others can reach"
            ));
        }
        if voters.iter().any(|voter| voter.id == id) {
            return Err(format!("voter {} stands twice", id.0));
        }
        voters.push(Voter { id, host, port });
    }
    Ok(voters)
}

fn parse_addresses(text: &str) -> Result<Vec<(String, u16)>, String> {
    items(text)
        .map(|item| {
            parse_address(item).ok_or_else(|| format!("'{item}' is not of the form host:port"))
        })
        .collect()
}

fn parse_address(text: &str) -> Option<(String, u16)> {
    let (host, port) = text.trim().rsplit_once(':')?;
    let host = host.trim_matches(['[', ']']);
    (!host.is_empty()).then_some((host.to_owned(), port.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given<'a>(roles: &'a str, voters: &'a str, listens: bool) -> Given<'a> {
        let listener = Listener {
            name: "CONTROLLER".into(),
            host: "localhost".into(),
            port: 9093,
        };
        Given {
            roles: Some(roles),
            node: NodeId(1),
            listeners: listens.then_some(listener).into_iter().collect(),
            listener_names: vec!["CONTROLLER".into()],
            voters,
            bootstrap: "",
        }
    }

    #[test]
    fn a_node_without_roles_is_its_own_cluster() {
        let quorum = Quorum::new(Given {
            roles: None,
            listener_names: Vec::new(),
            ..given("", "", false)
        });
        let quorum = quorum.unwrap();
        assert!(quorum.roles.broker && quorum.roles.controller);
        assert!(quorum.is_alone(NodeId(1)));
    }

    #[test]
    fn voters_are_read_with_ids_and_addresses() {
        let quorum = Quorum::new(given("controller", "1@a:1, 2@[::1]:2", true)).unwrap();
        assert_eq!(quorum.voters[1].host, "::1");
        assert!(!quorum.is_alone(NodeId(1)));
        for bad in ["1@a", "a:1", "x@a:1", "1@a:1,1@b:2", "-1@a:1", "1@a:0"] {
            let (key, _) = Quorum::new(given("controller", bad, true)).unwrap_err();
            assert_eq!(key, "controller.quorum.voters", "{bad}");
        }
    }

    #[test]
    fn roles_voters_and_listeners_must_agree() {
        let cases = [
            ("controller", "2@b:2", true, "controller.quorum.voters"),
            ("broker", "1@a:1", false, "controller.quorum.voters"),
            ("broker", "", false, "controller.quorum.voters"),
            ("broker", "2@b:2", true, "listeners"),
            (
                "broker,controller",
                "1@a:1,2@b:2",
                false,
                "controller.listener.names",
            ),
        ];
        for (roles, voters, listens, key) in cases {
            let wrong = Quorum::new(given(roles, voters, listens)).unwrap_err();
            assert_eq!(wrong.0, key, "{roles} {voters} {listens}: {}", wrong.1);
        }
        assert!(Quorum::new(given("broker", "2@b:2", false)).is_ok());
        assert!(Quorum::new(given("broker,controller", "1@a:1,2@b:2", true)).is_ok());
    }
}
