//! A world of controllers, the mail between them, and what is checked while they run.

use crate::cluster::MetadataLogError;
use crate::cluster::apis::{self, Asker};
use crate::cluster::controller::Controller;
use crate::cluster::image::Image;
use crate::cluster::metadata_log::MetadataLogSettings;
use crate::cluster::quorum::follow::{Answer, FollowError, FollowSettings, Follower};
use crate::cluster::quorum::observer::{Ask, Target};
use crate::cluster::quorum::peers;
use crate::cluster::record::MetadataRecord;
use crate::config::{BrokerConfig, properties};
use crate::net::admission::{Admission, ConnectionLimits};
use crate::net::controllers::Controllers;
use crate::rt;
use crate::rt::net::Listener;
use crate::rt::sim::{NodeHandle, World};
use crate::rt::sync::{Notify, oneshot};
use crate::types::{NodeId, Uuid};
use crate::wire::api::ApiKey;
use crate::wire::batch::Batches;
use crate::wire::messages::fetch_response::FetchResponse;
use crate::wire::messages::fetch_snapshot_response::FetchSnapshotResponse;
use crate::wire::messages::topic_record::TopicRecord;
use crate::wire::{Message, Reader};
use bytes::Bytes;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::hash::{Hash, Hasher};
use std::net::SocketAddr;
use std::path::Path;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;

/// A request of a broker, and where its answer goes.
type Request = (ApiKey, i16, Bytes, oneshot::Sender<Option<Bytes>>);

#[derive(Default)]
struct Letters {
    waiting: RefCell<VecDeque<Bytes>>,
    bell: Notify,
    /// What the node's own process has to answer, with its own disk.
    requests: RefCell<VecDeque<Request>>,
    request_bell: Notify,
}

/// What carries messages between the controllers, or does not.
#[derive(Default)]
pub struct Mail {
    boxes: RefCell<BTreeMap<i32, Rc<Letters>>>,
    cuts: RefCell<BTreeSet<(i32, i32)>>,
    /// One message in so many is lost, and is delivered twice; 0: none.
    pub lost_one_in: Cell<u64>,
    pub delay_ms_max: Cell<u64>,
}

impl Mail {
    fn letters(&self, node: i32) -> Rc<Letters> {
        self.boxes.borrow_mut().entry(node).or_default().clone()
    }

    pub fn cut(&self, from: i32, to: i32) {
        self.cuts.borrow_mut().insert((from, to));
    }

    pub fn heal(&self) {
        self.cuts.borrow_mut().clear();
        self.lost_one_in.set(0);
        self.delay_ms_max.set(5);
    }

    fn post(self: &Rc<Self>, from: i32, to: i32, bytes: Bytes) {
        let one_in = self.lost_one_in.get();
        let strikes = || one_in > 0 && rt::random_below(one_in) == 0;
        if self.cuts.borrow().contains(&(from, to)) || strikes() {
            return;
        }
        let copies = if strikes() { 2 } else { 1 };
        for _ in 0..copies {
            let delay = rt::random_below(self.delay_ms_max.get() * 1000 + 1);
            let (mail, bytes) = (self.clone(), bytes.clone());
            rt::spawn(async move {
                rt::sleep(Duration::from_micros(delay)).await;
                if mail.cuts.borrow().contains(&(from, to)) {
                    return;
                }
                let letters = mail.letters(to);
                letters.waiting.borrow_mut().push_back(bytes);
                letters.bell.notify_one();
            });
        }
    }
}

/// What has been seen of all controllers.
#[derive(Default)]
pub struct Seen {
    /// By epoch: who was active in it.
    active: RefCell<BTreeMap<i32, i32>>,
    /// By offset: a digest of the image, and of the log up to there.
    images: RefCell<BTreeMap<i64, u64>>,
    pub acknowledged: RefCell<BTreeSet<String>>,
    pub refused: RefCell<BTreeSet<String>>,
    /// Set by what must never happen.
    pub wrong: RefCell<Vec<String>>,
    pub running: RefCell<BTreeMap<i32, Weak<Controller>>>,
    pub following: RefCell<BTreeMap<i32, Weak<Follower>>>,
}

impl Seen {
    fn complain(&self, what: String) {
        self.wrong.borrow_mut().push(what);
    }

    fn image(&self, node: i32, image: &Image) {
        let mut hasher = std::hash::DefaultHasher::new();
        // All of it now and then, the topics always.
        if image.offset() % 32 == 0 {
            for record in image.records() {
                record.encode().unwrap().hash(&mut hasher);
            }
        }
        for topic in image.topics() {
            topic.id.hash(&mut hasher);
        }
        let digest = hasher.finish();
        let known = *self
            .images
            .borrow_mut()
            .entry(image.offset())
            .or_insert(digest);
        if known != digest {
            let names: Vec<_> = image.topics().map(|it| it.name.to_string()).collect();
            let at = image.offset();
            self.complain(format!("node {node} has another image at {at}: {names:?}"));
        }
    }

    pub fn look(&self) {
        for (node, controller) in self.running.borrow().iter() {
            let Some(controller) = controller.upgrade() else {
                continue;
            };
            if let Some(epoch) = controller.quorum().active_epoch() {
                let first = *self.active.borrow_mut().entry(epoch.0).or_insert(*node);
                if first != *node {
                    self.complain(format!(
                        "{first} and {node} are active in epoch {}",
                        epoch.0
                    ));
                }
            }
        }
    }

    pub fn check(&self) {
        let wrong = self.wrong.borrow();
        assert!(wrong.is_empty(), "{wrong:?}");
    }
}

pub struct Cluster {
    voters: i32,
    pub world: World,
    pub nodes: Vec<NodeHandle>,
    pub mail: Rc<Mail>,
    pub seen: Rc<Seen>,
}

pub fn config(node: i32, voters: i32, more: &str) -> Arc<BrokerConfig> {
    let list: Vec<String> = (0..voters).map(|id| format!("{id}@n{id}:9093")).collect();
    let text = format!(
        "process.roles=controller\nnode.id={node}\ncontroller.quorum.voters={}\n\
         controller.listener.names=CONTROLLER\nlisteners=CONTROLLER://n{node}:9093\n\
         listener.security.protocol.map=CONTROLLER:PLAINTEXT\nlog.dirs=/data\n{more}",
        list.join(",")
    );
    let properties = properties::parse("f", &text).unwrap();
    Arc::new(BrokerConfig::from_properties(properties).unwrap())
}

pub fn topic(name: &str) -> MetadataRecord {
    let mut hasher = std::hash::DefaultHasher::new();
    name.hash(&mut hasher);
    MetadataRecord::from(TopicRecord {
        name: name.into(),
        topic_id: Uuid::from_halves(5, hasher.finish()),
        ..Default::default()
    })
}

impl Cluster {
    pub fn start(seed: u64, voters: i32, more: &str) -> Cluster {
        Cluster::start_by(seed, voters, more, false)
    }

    /// The voters talk over their listeners, as they do in a broker.
    pub fn start_wired(seed: u64, voters: i32, more: &str) -> Cluster {
        Cluster::start_by(seed, voters, more, true)
    }

    fn start_by(seed: u64, voters: i32, more: &str, wired: bool) -> Cluster {
        let world = World::new(seed);
        let (mail, seen) = (Rc::new(Mail::default()), Rc::new(Seen::default()));
        mail.heal();
        let nodes: Vec<NodeHandle> = (0..voters)
            .map(|node| world.add_node(&format!("n{node}")))
            .collect();
        for (node, handle) in nodes.iter().enumerate() {
            let config = config(node as i32, voters, more);
            let (mail, seen) = (mail.clone(), seen.clone());
            let lives = Rc::new(Cell::new(0));
            handle.start(0, move |_| {
                lives.set(lives.get() + 1);
                run(
                    config.clone(),
                    mail.clone(),
                    seen.clone(),
                    lives.get(),
                    wired,
                )
            });
        }
        let watch = seen.clone();
        world.on_step(move |_| watch.look());
        Cluster {
            voters,
            world,
            nodes,
            mail,
            seen,
        }
    }

    /// Adds a broker that is no voter.
    pub fn add_observer(&mut self, more: &str) {
        let (node, voters) = (self.nodes.len() as i32, self.voters);
        let handle = self.world.add_node(&format!("n{node}"));
        let (more, mail, seen) = (more.to_owned(), self.mail.clone(), self.seen.clone());
        handle.start(0, move |_| {
            follow(node, voters, more.clone(), mail.clone(), seen.clone())
        });
        self.nodes.push(handle);
    }

    /// What every node has applied.
    fn images(&self) -> Vec<Arc<Image>> {
        let following = self.seen.following.borrow();
        let followers = following.values().filter_map(Weak::upgrade);
        let controllers = self.controllers();
        let images = controllers.iter().map(|it| it.image());
        images.chain(followers.map(|it| it.image())).collect()
    }

    /// Has a node's process answer a request.
    pub fn ask<Q: Message, R: Message>(&self, node: usize, request: &Q) -> R {
        let (tell, mut told) = oneshot::channel();
        let version = Q::MAX_VERSION;
        let body = request.to_bytes(version).unwrap();
        let letters = self.mail.letters(node as i32);
        let request = (ApiKey(Q::API_KEY), version, body, tell);
        letters.requests.borrow_mut().push_back(request);
        letters.request_bell.notify_one();
        let mut answer = None;
        self.world.run_until(Duration::from_secs(5), || {
            answer = told.try_recv();
            answer.is_some()
        });
        R::from_bytes(answer.unwrap().unwrap(), version).unwrap()
    }

    pub fn controller(&self, node: usize) -> Option<Rc<Controller>> {
        self.seen.running.borrow().get(&(node as i32))?.upgrade()
    }

    pub fn controllers(&self) -> Vec<Rc<Controller>> {
        (0..self.nodes.len())
            .filter_map(|node| self.controller(node))
            .collect()
    }

    pub fn active(&self) -> Option<usize> {
        let is_active = |node: &usize| {
            let running = self.nodes[*node].is_running();
            running && self.controller(*node).is_some_and(|it| it.is_active())
        };
        (0..self.nodes.len()).find(is_active)
    }

    /// Heals everything, and waits until all have the same and something new is decided.
    pub fn converge(&self) {
        self.mail.heal();
        self.world.network().heal_all();
        for node in &self.nodes {
            node.disk().heal();
            if !node.is_running() {
                node.restart();
            }
        }
        let before = self.seen.acknowledged.borrow().len();
        let agreed = || {
            let images = self.images();
            images.len() == self.nodes.len()
                && self.active().is_some()
                && self.seen.acknowledged.borrow().len() > before
                && images.iter().all(|it| it.offset() == images[0].offset())
        };
        let ok = self.world.run_until(Duration::from_secs(60), || {
            // A node that a fault of before ended comes back.
            for node in self.nodes.iter().filter(|node| !node.is_running()) {
                node.restart();
            }
            agreed()
        });
        self.seen.check();
        let state: Vec<_> = self
            .controllers()
            .iter()
            .map(|it| {
                (
                    it.quorum().leader(),
                    it.quorum().committed(),
                    it.is_active(),
                )
            })
            .collect();
        let images: Vec<_> = self.images().iter().map(|it| it.offset()).collect();
        assert!(ok, "no agreement: {state:?}, images {images:?}");
    }

    /// What was acknowledged is there, what was refused is not, and the logs are the same bytes.
    pub fn check_all(&self) {
        self.seen.check();
        let committed = self
            .controllers()
            .iter()
            .map(|it| it.quorum().committed().0)
            .min();
        for image in self.images() {
            for name in self.seen.acknowledged.borrow().iter() {
                assert!(
                    image.topic_by_name(name).is_some(),
                    "{name} was acknowledged"
                );
            }
            for name in self.seen.refused.borrow().iter() {
                assert!(image.topic_by_name(name).is_none(), "{name} was refused");
            }
        }
        let mut batches: BTreeMap<i64, Bytes> = BTreeMap::new();
        for node in &self.nodes {
            let home = Path::new("/data/__cluster_metadata-0");
            let names = node.disk().list(home).unwrap_or_default();
            for name in names.iter().filter(|name| name.ends_with(".log")) {
                let bytes = node.disk().read(home.join(name)).unwrap();
                for batch in Batches::new(bytes.into()) {
                    let batch = batch.unwrap();
                    if Some(batch.last_offset().0) >= committed {
                        break;
                    }
                    let known = batches.entry(batch.base_offset().0);
                    let known = known.or_insert_with(|| batch.as_bytes().clone());
                    assert_eq!(known, batch.as_bytes(), "node {}", node.id());
                }
            }
        }
    }
}

/// One life of a controller: proposes topics whenever it is active, until it fails.
async fn run(config: Arc<BrokerConfig>, mail: Rc<Mail>, seen: Rc<Seen>, life: u64, wired: bool) {
    let node = config.node_id.0;
    let voters = config.quorum.voters.clone();
    let opened = async {
        // The log directory is there before anything is in it, as the broker sees to.
        let made = rt::fs::create_dir_all("/data").await;
        let made = made.and(rt::fs::sync_dir("/").await);
        made.map_err(|source| MetadataLogError::Io {
            what: "cannot make",
            path: "/data".into(),
            source,
        })?;
        Controller::open(Path::new("/data"), config).await
    };
    let controller = match opened.await {
        Ok(controller) => controller,
        Err(error) => return failed(&seen, node, &error),
    };
    let stop = Notify::new();
    {
        let (seen, stop) = (seen.clone(), stop.clone());
        controller.on_failure(move |error| {
            failed(&seen, node, error);
            stop.notify_one();
        });
    }
    seen.image(node, &controller.image());
    {
        let seen = seen.clone();
        controller.on_publish(move |image| seen.image(node, &image));
    }
    if wired {
        let address = SocketAddr::from(([10, 0, 0, node as u8 + 1], 9093));
        let admission = Admission::new(ConnectionLimits {
            total: 1000,
            per_ip: 1000,
            overrides: Vec::new(),
        });
        let listeners = Controllers::new(controller.clone(), admission, 100 << 20);
        let listener = Listener::bind(address).unwrap();
        rt::spawn(listeners.run(listener, "CONTROLLER".into()));
        let voters = voters.iter().map(|voter| peers::Address {
            node: voter.id,
            host: voter.host.clone(),
            port: voter.port,
        });
        let voters: Vec<_> = voters.collect();
        peers::connect(controller.quorum(), "sim", &voters);
    } else {
        let mail = mail.clone();
        controller
            .quorum()
            .on_send(move |to, bytes| mail.post(node, to.0, bytes));
    }
    seen.running
        .borrow_mut()
        .insert(node, Rc::downgrade(&controller));
    let letters = mail.letters(node);
    letters.waiting.borrow_mut().clear();
    {
        let quorum = Rc::downgrade(controller.quorum());
        rt::spawn(async move {
            loop {
                let next = letters.waiting.borrow_mut().pop_front();
                match (next, quorum.upgrade()) {
                    (_, None) => return,
                    (Some(bytes), Some(quorum)) => quorum.receive(bytes),
                    (None, Some(quorum)) => {
                        drop(quorum);
                        letters.bell.notified().await;
                    }
                }
            }
        });
    }
    rt::spawn(answer(Rc::downgrade(&controller), mail.letters(node)));
    rt::spawn(propose(controller.clone(), seen, node, life));
    stop.notified().await;
}

/// Answers brokers.
async fn answer(controller: Weak<Controller>, letters: Rc<Letters>) {
    letters.requests.borrow_mut().clear();
    loop {
        let next = letters.requests.borrow_mut().pop_front();
        let Some((key, version, body, tell)) = next else {
            letters.request_bell.notified().await;
            continue;
        };
        let Some(controller) = controller.upgrade() else {
            return;
        };
        rt::spawn(async move {
            let asker = Asker {
                client_id: "sim".into(),
                host: "/sim".into(),
            };
            let answer = apis::answer(&controller, &asker, key, version, Reader::new(body)).await;
            let _ = tell.send(answer);
        });
    }
}

/// One life of a broker that follows the controllers.
async fn follow(node: i32, voters: i32, more: String, mail: Rc<Mail>, seen: Rc<Seen>) {
    let known = (0..voters).map(|id| Target {
        id: Some(NodeId(id)),
        host: format!("n{id}"),
        port: 9093,
    });
    let settings = FollowSettings {
        node: NodeId(node),
        directory: Uuid::from_halves(3, node as u64),
        cluster_id: "sim".into(),
        known: known.collect(),
        backoff: Duration::from_millis(20),
        log: MetadataLogSettings::of(&config(0, voters, &more)),
    };
    let made = rt::fs::create_dir_all("/data").await;
    if made.and(rt::fs::sync_dir("/").await).is_err() {
        return;
    }
    let ask = move |target: Target, ask: Ask| ask_controller(node, target, ask, mail.clone());
    let follower = match Follower::start(Path::new("/data"), settings, ask).await {
        Ok(follower) => follower,
        Err(error) => return failed(&seen, node, &error),
    };
    let stop = Notify::new();
    {
        let (seen, stop) = (seen.clone(), stop.clone());
        follower.on_failure(move |error| {
            match error {
                FollowError::Log(error) => failed(&seen, node, error),
                FollowError::Observer(error) => seen.complain(format!("node {node}: {error}")),
            }
            stop.notify_one();
        });
    }
    seen.image(node, &follower.image());
    {
        let seen = seen.clone();
        follower.on_publish(move |image| seen.image(node, &image));
    }
    seen.following
        .borrow_mut()
        .insert(node, Rc::downgrade(&follower));
    stop.notified().await;
}

/// The request and the answer go through the codec, and may be lost on either way.
async fn ask_controller(node: i32, target: Target, ask: Ask, mail: Rc<Mail>) -> Option<Answer> {
    let to = target.id?.0;
    let travel = || async {
        let delay = rt::random_below(mail.delay_ms_max.get() * 1000 + 1);
        rt::sleep(Duration::from_micros(delay)).await;
        let one_in = mail.lost_one_in.get();
        one_in == 0 || rt::random_below(one_in) != 0
    };
    let is_cut = |from, to| mail.cuts.borrow().contains(&(from, to));
    let exchange = async {
        if !travel().await || is_cut(node, to) {
            return None;
        }
        let (key, version, body) = match &ask {
            Ask::Fetch(request) => (ApiKey::FETCH, 17, request.to_bytes(17).unwrap()),
            Ask::Snapshot(request) => (ApiKey::FETCH_SNAPSHOT, 1, request.to_bytes(1).unwrap()),
        };
        let (tell, told) = oneshot::channel();
        let letters = mail.letters(to);
        letters
            .requests
            .borrow_mut()
            .push_back((key, version, body, tell));
        letters.request_bell.notify_one();
        let answer = told.await.ok().flatten()?;
        if !travel().await || is_cut(to, node) {
            return None;
        }
        Some(match ask {
            Ask::Fetch(_) => {
                Answer::Fetch(Box::new(FetchResponse::from_bytes(answer, 17).unwrap()))
            }
            Ask::Snapshot(_) => Answer::Snapshot(Box::new(
                FetchSnapshotResponse::from_bytes(answer, 1).unwrap(),
            )),
        })
    };
    let answer = rt::timeout(Duration::from_secs(2), exchange).await;
    answer.unwrap_or(None)
}

async fn propose(controller: Rc<Controller>, seen: Rc<Seen>, node: i32, life: u64) {
    for at in 0.. {
        rt::sleep(Duration::from_millis(rt::random_below(60))).await;
        if !controller.is_active() {
            continue;
        }
        let name = format!("t{node}-{life}-{at}");
        let record = topic(&name);
        match controller.change(move |_| (vec![record], ())).await {
            Ok(()) => {
                seen.acknowledged.borrow_mut().insert(name);
            }
            Err(MetadataLogError::LeadershipLost | MetadataLogError::Failed) => {}
            Err(_) => {
                seen.refused.borrow_mut().insert(name);
            }
        }
    }
}

fn failed(seen: &Seen, node: i32, error: &MetadataLogError) {
    println!("node {node} failed: {error}");
    let is_disk = matches!(
        error,
        MetadataLogError::Io { .. } | MetadataLogError::Failed
    );
    if !is_disk {
        seen.complain(format!("node {node}: {error}"));
    }
}
