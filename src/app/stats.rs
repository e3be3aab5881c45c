//! Process-wide metrics that the exporters collect from the other modules.

use std::sync::{Arc, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use crate::app::access_log::AccessLog;
use crate::app::backlog::Backlog;
use crate::app::intercepting::Found;
use crate::app::path::Handles;
use tokometer_engine::engine_spans;
use tokometer_engine::scrape;
use tokometer_engine::scrape::Engines;
use tokometer_observe::input::Direction;
use tokometer_observe::measure::CountSource;
use tokometer_proxy::relay::Full;
use tokometer_telemetry::accounting;
use tokometer_telemetry::accounting::Ledger;
use tokometer_telemetry::export::AccessLogStats;
use tokometer_telemetry::export::BudgetFigures;
use tokometer_telemetry::export::BudgetStats;
use tokometer_telemetry::export::CostStats;
use tokometer_telemetry::export::EngineSpans;
use tokometer_telemetry::export::JudgedStats;
use tokometer_telemetry::export::LedgerStats;
use tokometer_telemetry::export::ObjectiveStats;
use tokometer_telemetry::export::PairStats;
use tokometer_telemetry::export::PhaseStats;
use tokometer_telemetry::export::ProcessFigures;
use tokometer_telemetry::export::ProcessStats;
use tokometer_telemetry::export::SloStats;
use tokometer_telemetry::export::Snapshot;
use tokometer_telemetry::export::TenantStats;
use tokometer_telemetry::export::UnpricedStats;
use tokometer_telemetry::live;
use tokometer_telemetry::live::InFlight;
use tokometer_telemetry::slo::Judge;
use tokometer_telemetry::slo::Judged;
use tokometer_telemetry::tokenizer::Counting;
use tokometer_wire::budget::Budget;

/// Parts that exist once the data path runs.
type Running = (Handles, Arc<InFlight>, Arc<Counting>, Arc<Backlog>);

/// Metrics of the data path, the span receiver, the engines, the SLO judge and the ledger. The exporters start before
/// the first two: until then their metrics are absent.
#[derive(Clone, Debug)]
pub(super) struct Figures {
    path: Arc<OnceLock<Running>>,
    queue: Arc<OnceLock<Arc<engine_spans::Figures>>>,
    access_log: Arc<OnceLock<Arc<AccessLog>>>,
    engines: Engines,
    judge: Arc<Judge>,
    ledger: Arc<Ledger>,
    interceptions: Found,
}

impl Figures {
    /// With the metrics of these engines, and the counts of this judge and this ledger.
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

    /// Where the interception check stores its results.
    pub(super) fn interceptions(&self) -> Found {
        Arc::clone(&self.interceptions)
    }

    /// Called when the data path runs.
    pub(super) fn attach(
        &self,
        handles: Handles,
        in_flight: Arc<InFlight>,
        counting: Arc<Counting>,
        backlog: Arc<Backlog>,
    ) {
        // Only the first data path is exported.
        self.path.set((handles, in_flight, counting, backlog)).ok();
    }

    /// Called when the span receiver runs.
    pub(super) fn attach_queue(&self, figures: Arc<engine_spans::Figures>) {
        self.queue.set(figures).ok();
    }

    /// Called when an access log is open.
    pub(super) fn attach_access_log(&self, log: Arc<AccessLog>) {
        self.access_log.set(log).ok();
    }
}

impl ProcessStats for Figures {
    fn snapshot(&self) -> Snapshot {
        // Record ended requests before adding up.
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
    let objective = |objective: &tokometer_telemetry::slo::Objective| ObjectiveStats {
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
    let tenant = |accounting::TenantUsage { tenant, usage }| TenantStats {
        tenant,
        ended: usage.ended,
        input: sources(usage.input),
        cached: usage.cached_input,
        output: sources(usage.output),
    };
    let cost = |accounting::Costs { model, tenant, currency, by_basis }| CostStats {
        model,
        tenant,
        currency,
        by_source: by_basis.into_iter().map(|(basis, money)| (basis.as_str(), money)).collect(),
    };
    let budget =
        |accounting::Spent { budget, unit, limit, spent }| BudgetStats { budget: budget.into(), unit, limit, spent };
    let unpriced = |accounting::UnpricedAnswers { model, by_reason }| UnpricedStats {
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

fn engine_spans(figures: &engine_spans::Figures) -> EngineSpans {
    let connections = ("connections", figures.refused_connections());
    let refused = engine_spans::Refusal::ALL.iter().map(|why| (why.as_str(), figures.refused(*why)));
    EngineSpans {
        received: figures.received(),
        forwarded: figures.forwarded(),
        dropped: engine_spans::Unsent::ALL.iter().map(|why| (why.as_str(), figures.unsent(*why))).collect(),
        refused: refused.chain([connections]).collect(),
        waiting_bytes: figures.waiting_bytes() as u64,
        joins: engine_spans::Join::ALL.iter().map(|of| (of.as_str(), figures.joins(*of))).collect(),
        unjoined: engine_spans::Lost::ALL.iter().map(|why| (why.as_str(), figures.lost(*why))).collect(),
        held: figures.held() as u64,
    }
}
