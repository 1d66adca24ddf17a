//! One run from its beginning to its result: threads started, connected, let go together, and
//! accounted.
//!
//! Called on a plain thread, which waits. Each load thread is an executor; the control executor
//! prepares the topic, sets the start, gathers, and reads what the tool and the brokers cost in
//! just the measured time.

use std::rc::Rc;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::consumer::Consumer;
use super::context::Context;
use super::error::BenchError;
use super::gather::Gatherer;
use super::plan::{Load, Plan};
use super::producer::Producer;
use super::samples::{Samples, Told};
use super::schedule::{Schedule, Window};
use super::topic;
use crate::client::Cluster;
use crate::lab::process_cost::{OwnThreads, ProcessReading};
use crate::lab::result::{BrokerCost, Run, ToolCost};
use crate::rt::{self, Instant, RingPlan, run_ring};

/// From the moment all are connected to the first due time.
const LEAD: Duration = Duration::from_millis(20);
/// How often the gatherer looks.
const LOOK: Duration = Duration::from_millis(50);

/// What a caller learns of a run.
pub(super) type Outcome = Result<Run, BenchError>;

/// Runs `plan` and waits for its end.
///
/// # Errors
/// [`BenchError`] when the load could not begin, or nothing at all was acknowledged.
pub fn run(plan: &Plan) -> Result<Run, BenchError> {
    plan.validate()?;
    let plan = Arc::new(plan.clone());
    let (gatherer, told) = channel();
    let context = Arc::new(Context::new(plan.clone(), rt::random_u64(), gatherer));
    let told = Arc::new(Mutex::new(Some(told)));
    let outcome: Arc<Mutex<Option<Outcome>>> = Arc::default();
    let ring = RingPlan {
        shards: plan.threads,
        ..RingPlan::default()
    };
    run_ring(ring, {
        let (context, outcome) = (context.clone(), outcome.clone());
        move |executor| {
            let (context, outcome, told) = (context.clone(), outcome.clone(), told.clone());
            async move {
                if !executor.is_control() {
                    work(context, executor.index).await;
                    return;
                }
                let told = told.lock().unwrap_or_else(PoisonError::into_inner).take();
                let Some(told) = told else { return };
                let result = direct(&context, told).await;
                *outcome.lock().unwrap_or_else(PoisonError::into_inner) = result;
            }
        }
    })?;
    if let Some(failure) = context.take_failure() {
        return Err(failure);
    }
    let result = outcome
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .take();
    result.unwrap_or_else(|| Err(BenchError::Invalid("the run ended early".to_owned())))
}

fn window(plan: &Plan, start: u64) -> Window {
    let nanos = |time: Duration| time.as_nanos() as u64;
    let from = start + nanos(plan.warm_up);
    let to = from + nanos(plan.duration);
    Window {
        start,
        from,
        to,
        until: to + nanos(plan.drain),
    }
}

// ------------------------------------------------------------------------------ load threads

/// One load thread.
async fn work(context: Arc<Context>, thread: usize) {
    if let Some(cpu) = context.plan.cpus.get(thread)
        && !core_affinity::set_for_current(core_affinity::CoreId { id: *cpu })
    {
        context.fail(BenchError::Invalid(format!("CPU {cpu} cannot be used")));
        return;
    }
    if !context.wait_for_topic().await {
        return;
    }
    let samples = Rc::new(Samples::new(context.gatherer.clone()));
    let clients = match connect(&context, &samples, thread).await {
        Ok(clients) => clients,
        Err(error) => return context.fail(error),
    };
    context.is_ready();
    let Some(start) = context.wait_for_start().await else {
        return;
    };
    let plan = &context.plan;
    samples.begin(window(plan, start));
    let mut tasks = Vec::new();
    for (number, producer) in clients.producers {
        if let Load::Open {
            records_per_second,
            arrivals,
        } = plan.load
        {
            let place = (number, plan.producers);
            let schedule = Schedule::new(start, records_per_second, arrivals, place, plan.seed);
            producer.begin(Some(schedule));
        }
        let context = context.clone();
        tasks.push(rt::spawn(async move {
            rt::sleep_until(Instant(start)).await;
            producer.run().await;
            context.producer_ended();
        }));
    }
    for consumer in clients.consumers {
        tasks.push(rt::spawn(consumer.run()));
    }
    let ticking = rt::spawn(tick(samples.clone()));
    for task in tasks {
        task.await;
    }
    ticking.cancel().await;
    samples.end(rt::now().as_nanos());
    clients.cluster.close();
    context.wait_for_account().await;
}

/// Seconds end also where nothing happens.
async fn tick(samples: Rc<Samples>) {
    loop {
        let window = samples.window();
        let now = rt::now().as_nanos();
        samples.turn(now);
        let next = window.second_start(window.second(now) + 1);
        rt::sleep_until(Instant(next)).await;
    }
}

struct Clients {
    cluster: Cluster,
    producers: Vec<(usize, Producer)>,
    consumers: Vec<Consumer>,
}

/// The producers and consumers of one thread, dealt out in turn.
async fn connect(
    context: &Arc<Context>,
    samples: &Rc<Samples>,
    thread: usize,
) -> Result<Clients, BenchError> {
    let plan = &context.plan;
    let cluster = Cluster::connect(topic::client_config(plan)).await?;
    topic::leaders(&cluster, plan, 0).await?;
    let mut clients = Clients {
        cluster: cluster.clone(),
        producers: Vec::new(),
        consumers: Vec::new(),
    };
    for number in (0..plan.producers).filter(|number| number % plan.threads == thread) {
        let producer =
            Producer::connect(context.clone(), cluster.clone(), samples.clone(), number).await?;
        clients.producers.push((number, producer));
    }
    for number in 0..plan.consumers {
        if (plan.producers + number) % plan.threads != thread {
            continue;
        }
        let consumer =
            Consumer::connect(context.clone(), cluster.clone(), samples.clone(), number).await?;
        clients.consumers.push(consumer);
    }
    Ok(clients)
}

// ---------------------------------------------------------------------------- control executor

/// Directs the run; `None` if it failed, and the context knows why.
async fn direct(context: &Arc<Context>, told: Receiver<Told>) -> Option<Outcome> {
    let plan = &context.plan;
    if let Err(error) = topic::prepare(plan).await {
        context.fail(error);
        return None;
    }
    context.topic_is_there();
    if !context.wait_for_threads().await {
        return None;
    }
    // Brokers are read once before the load, so that a wrong id is told at once.
    if let Err(error) = readings(plan) {
        context.fail(error);
        return None;
    }
    let start = (rt::now() + LEAD).as_nanos();
    let window = window(plan, start);
    context.begin(start);
    let costs = rt::spawn({
        let context = context.clone();
        async move {
            let costs = costs(&context.plan, window).await;
            context.is_accounted();
            costs
        }
    });
    let mut gatherer = Gatherer::new(plan, window);
    'gathering: loop {
        while let Ok(one) = told.try_recv() {
            if gatherer.take_in(one) {
                break 'gathering;
            }
        }
        if context.has_failed() {
            return None;
        }
        rt::sleep(LOOK).await;
    }
    let (tool, brokers, mut doubts) = costs.await;
    let sums = gatherer.sums();
    if plan.producers > 0 && sums.acknowledged_in_all == 0 {
        let reason = sums.troubles.keys().next().cloned();
        return Some(Err(BenchError::NothingAcknowledged {
            records: sums.failed + sums.unsent,
            reason: reason.unwrap_or_else(|| "no answer came".to_owned()),
        }));
    }
    let mut run = gatherer.finish(plan, tool, brokers);
    run.warnings.append(&mut doubts);
    if plan.delete_topic
        && let Err(error) = topic::delete(plan).await
    {
        run.warnings
            .push(format!("the topic was not deleted: {error}"));
    }
    Some(Ok(run))
}

fn readings(plan: &Plan) -> Result<Vec<ProcessReading>, BenchError> {
    let read = |pid: &u32| {
        ProcessReading::of(*pid).map_err(|error| BenchError::Invalid(format!("broker: {error}")))
    };
    plan.broker_pids.iter().map(read).collect()
}

/// What the tool and the brokers cost in the measured time, and what is doubtful about it.
async fn costs(plan: &Plan, window: Window) -> (ToolCost, Vec<BrokerCost>, Vec<String>) {
    rt::sleep_until(Instant(window.from)).await;
    let before = (OwnThreads::read(), readings(plan));
    let began = rt::now();
    rt::sleep_until(Instant(window.to)).await;
    let after = (OwnThreads::read(), readings(plan));
    let seconds = rt::now().since(began).as_secs_f64();
    let mut doubts = Vec::new();
    let tool = match (before.0, after.0) {
        (Ok(before), Ok(after)) => after.since(&before, seconds),
        (Err(error), _) | (_, Err(error)) => {
            doubts.push(format!("the tool's own cost is not known: {error}"));
            ToolCost::default()
        }
    };
    let mut brokers = Vec::new();
    match (before.1, after.1) {
        (Ok(before), Ok(after)) => {
            for (before, after) in before.iter().zip(&after) {
                match after.since(before) {
                    Ok(cost) => brokers.push(cost),
                    Err(error) => doubts.push(error.to_string()),
                }
            }
        }
        (Err(error), _) | (_, Err(error)) => doubts.push(error.to_string()),
    }
    (tool, brokers, doubts)
}

/// Deletes the topic of `plan`: for a caller of several runs on one.
///
/// # Errors
/// The cluster's.
pub fn delete_topic(plan: &Plan) -> Result<(), BenchError> {
    let plan = Arc::new(plan.clone());
    let outcome: Arc<Mutex<Result<(), BenchError>>> = Arc::new(Mutex::new(Ok(())));
    run_ring(RingPlan::default(), {
        let outcome = outcome.clone();
        move |executor| {
            let (plan, outcome) = (plan.clone(), outcome.clone());
            async move {
                if executor.is_control() {
                    let deleted = topic::delete(&plan).await;
                    *outcome.lock().unwrap_or_else(PoisonError::into_inner) = deleted;
                }
            }
        }
    })?;
    let mut outcome = outcome.lock().unwrap_or_else(PoisonError::into_inner);
    std::mem::replace(&mut *outcome, Ok(()))
}
