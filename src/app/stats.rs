//! The figures that the exporters ask the rest of the program for.

use std::sync::{Arc, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use crate::app::access_log::AccessLog;
use crate::app::backlog::Backlog;
use crate::app::intercepting::Found;
use crate::app::path::Handles;
use crate::budget::Budget;
use crate::export::AccessLogStats;
use crate::export::BudgetFigures;
use crate::export::BudgetStats;
use crate::export::CostStats;
use crate::export::EngineSpans;
use crate::export::JudgedStats;
use crate::export::LedgerStats;
use crate::export::ObjectiveStats;
use crate::export::PairStats;
use crate::export::PhaseStats;
use crate::export::ProcessFigures;
use crate::export::ProcessStats;
use crate::export::SloStats;
use crate::export::Snapshot;
use crate::export::TenantStats;
use crate::export::UnpricedStats;
use crate::ledger;
use crate::ledger::Ledger;
use crate::live;
use crate::live::InFlight;
use crate::measure::CountSource;
use crate::queue;
use crate::relay::Direction;
use crate::relay::Full;
use crate::scrape;
use crate::scrape::Engines;
use crate::slo::Judge;
use crate::slo::Judged;
use crate::tokenizer::Counting;

/// What runs once the data path does.
type Running = (Handles, Arc<InFlight>, Arc<Counting>, Arc<Backlog>);

/// Figures of the data path, of the receiver of spans, of the engines, of the judge and of the ledger. The exporters start before the first
/// two: until then theirs are absent.
#[derive(Clone, Debug)]
pub(super) struct Figures {
    path: Arc<OnceLock<Running>>,
    queue: Arc<OnceLock<Arc<queue::Figures>>>,
    access_log: Arc<OnceLock<Arc<AccessLog>>>,
    engines: Engines,
    judge: Arc<Judge>,
    ledger: Arc<Ledger>,
    interceptions: Found,
}

impl Figures {
    /// With what was read of these engines, and what this judge and this ledger have counted.
    pub(super) fn new(engines: Engines, judge: Arc<Judge>, ledger: Arc<Ledger>) -> Figures {
        Figures {
            path: Arc::default(),
            queue: Arc::default(),
            access_log: Arc::default(),
            engines,
            judge,
            ledger,
            interceptions: Found::default(),
        }
    }

    /// Where it is noted how each pair stands before its server.
    pub(super) fn interceptions(&self) -> Found {
        Arc::clone(&self.interceptions)
    }

    /// The data path runs.
    pub(super) fn attach(
        &self,
        handles: Handles,
        in_flight: Arc<InFlight>,
        counting: Arc<Counting>,
        backlog: Arc<Backlog>,
    ) {
        // A second data path would have figures of its own.
        self.path.set((handles, in_flight, counting, backlog)).ok();
    }

    /// Spans are received.
    pub(super) fn attach_queue(&self, figures: Arc<queue::Figures>) {
        self.queue.set(figures).ok();
    }

    /// An access log is written.
    pub(super) fn attach_access_log(&self, log: Arc<AccessLog>) {
        self.access_log.set(log).ok();
    }
}

impl ProcessStats for Figures {
    fn snapshot(&self) -> Snapshot {
        // What has ended is told before anything is added up.
        if let Some((.., backlog)) = self.path.get() {
            backlog.settle();
        }
        let process = ProcessFigures::of_this_process();
        let slo = judged(&self.judge);
        let ledger = added_up(&self.ledger);
        let engines = self.engines.figures(Instant::now());
        let engine_spans = self.queue.get().map(|figures| engine_spans(figures));
        let access_log =
            self.access_log.get().map(|log| AccessLogStats { dropped: log.dropped(), failed: log.failed() });
        let Some((Handles { relay, observatory }, in_flight, counting, backlog)) = self.path.get() else {
            return Snapshot { engines, engine_spans, access_log, slo, ledger, process, ..Snapshot::default() };
        };
        let live = in_flight.stats(Instant::now());
        let interceptions = self.interceptions.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let interceptions = interceptions.into_iter().chain(std::iter::repeat(None));
        let each = relay.stats().iter().zip(&live).zip(interceptions);
        let pairs = each.map(|((stats, live), interception)| PairStats {
            interception: interception.map(|found| (found.mode, found.result)),
            opened: stats.accepted(),
            open: stats.open(),
            turned_away: Full::ALL.map(|why| stats.refused(why)),
            refused: stats.connect_failures(),
            timed_out: stats.connect_timeouts(),
            request_bytes: stats.bytes(Direction::Request),
            response_bytes: stats.bytes(Direction::Response),
            phases: live.phases.map(phase),
            stalled: live.stalled,
            held_up: live.verdict.held_up,
            silence: live.verdict.silent,
            silence_bound: live.verdict.rule.map(|_| live.verdict.bound),
            wedged: live.verdict.state == live::State::Wedged,
        });
        let (recent, recent_bytes) = in_flight.recent().held();
        Snapshot {
            pairs: pairs.collect(),
            engines,
            observed_connections: observatory.observed() as u64,
            observer_time: observatory.busy(),
            observer_budget: Some(observer_budget(&observatory.budget())),
            event_loop_lag: relay.lag(),
            slo,
            ledger,
            uncounted: counting.uncounted(),
            untracked: in_flight.untracked(),
            recent,
            recent_bytes,
            recent_dropped: in_flight.recent().dropped(),
            records_dropped: backlog.dropped(),
            engine_spans,
            access_log,
            process,
        }
    }

    fn engine_at(&self, pair: usize, moment: Instant) -> Option<(Arc<scrape::State>, Duration)> {
        self.engines.at(pair, moment)
    }
}

fn observer_budget(budget: &Budget) -> BudgetFigures {
    BudgetFigures {
        decoded: budget.decoded(),
        held: budget.held() as u64,
        limit: budget.limit() as u64,
        refused: budget.refused(),
    }
}

fn judged(judge: &Judge) -> SloStats {
    let settings = judge.settings();
    let objective = |objective: &crate::slo::Objective| ObjectiveStats {
        name: objective.name.as_str().into(),
        target: objective.target,
        thresholds: objective.goal.thresholds(),
    };
    let counts = |Judged { objective, model, counts }: Judged| JudgedStats {
        objective: objective.into(),
        model,
        good: counts.good,
        bad: counts.bad.into_iter().map(|(reason, n)| (reason.as_str(), n)).collect(),
        excluded: counts.excluded.into_iter().map(|(why, n)| (why.as_str(), n)).collect(),
        good_tokens: counts.good_tokens.into_iter().map(|(source, n)| (source.as_str(), n)).collect(),
    };
    SloStats {
        objectives: settings.objectives.iter().map(objective).collect(),
        judged: judge.judged().into_iter().map(counts).collect(),
    }
}

fn added_up(ledger: &Ledger) -> LedgerStats {
    let sums = ledger.sums();
    let sources =
        |counts: Vec<(CountSource, u64)>| counts.into_iter().map(|(source, n)| (source.as_str(), n)).collect();
    let tenant = |ledger::TenantUsage { tenant, usage }| TenantStats {
        tenant,
        ended: usage.ended,
        input: sources(usage.input),
        cached: usage.cached_input,
        output: sources(usage.output),
    };
    let cost = |ledger::Costs { model, tenant, currency, by_basis }| CostStats {
        model,
        tenant,
        currency,
        by_source: by_basis.into_iter().map(|(basis, money)| (basis.as_str(), money)).collect(),
    };
    let budget =
        |ledger::Spent { budget, unit, limit, spent }| BudgetStats { budget: budget.into(), unit, limit, spent };
    let unpriced = |ledger::UnpricedAnswers { model, by_reason }| UnpricedStats {
        model,
        by_reason: by_reason.into_iter().map(|(why, n)| (why.as_str(), n)).collect(),
    };
    LedgerStats {
        folded: (!sums.tenants.is_empty()).then_some(sums.folded),
        tenants: sums.tenants.into_iter().map(tenant).collect(),
        costs: sums.costs.into_iter().map(cost).collect(),
        unpriced: sums.unpriced.into_iter().map(unpriced).collect(),
        budgets: sums.budgets.into_iter().map(budget).collect(),
    }
}

fn phase(phase: live::Phases) -> PhaseStats {
    let some = |time| (phase.exchanges > 0).then_some(time);
    let number = u32::try_from(phase.exchanges).unwrap_or(u32::MAX).max(1);
    PhaseStats { mean_age: some(phase.ages / number), oldest: some(phase.oldest), waited: some(phase.waited) }
}

fn engine_spans(figures: &queue::Figures) -> EngineSpans {
    let connections = ("connections", figures.refused_connections());
    let refused = queue::Refusal::ALL.iter().map(|why| (why.as_str(), figures.refused(*why)));
    EngineSpans {
        received: figures.received(),
        forwarded: figures.forwarded(),
        dropped: queue::Unsent::ALL.iter().map(|why| (why.as_str(), figures.unsent(*why))).collect(),
        refused: refused.chain([connections]).collect(),
        waiting_bytes: figures.waiting_bytes() as u64,
        joins: queue::Join::ALL.iter().map(|of| (of.as_str(), figures.joins(*of))).collect(),
        unjoined: queue::Lost::ALL.iter().map(|why| (why.as_str(), figures.lost(*why))).collect(),
        held: figures.held() as u64,
    }
}
