//! Adds the values of request records to the metric series.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::export::Settings;
use crate::export::collect::telemetry::Telemetry;
use crate::export::labels::classes::{Class, Classes};
use crate::export::labels::names::{Label, Name};
use crate::export::labels::sets::{Known, LabelSets, Resolved, Table};
use crate::export::labels::{Extra, NONE, failure, one};
use crate::export::series::Families;
use crate::export::series::distribution::Exemplar;
use crate::export::series::handles::{Handles, SeriesCache};
use crate::export::series::live::LiveCounts;
use crate::fields::{FIELDS, Reading};
use tokometer_metrics::table::{Id, Key};
use tokometer_metrics::{Servers, Value};
use tokometer_observe::measure::{Count, CountSource, Labels, Outcome, PhaseKind, Phases, Record};

/// Records values for both exporters. The data path calls only [`LabelSets::live`], which takes no lock.
#[derive(Debug)]
pub(crate) struct Recorder {
    families: Arc<Families>,
    telemetry: Arc<Telemetry>,
    servers: Servers,
    classes: Classes,
    pub(crate) sets: LabelSets,
}

impl Recorder {
    pub(crate) fn new(
        families: Arc<Families>,
        telemetry: Arc<Telemetry>,
        servers: Servers,
        settings: &Settings,
    ) -> Recorder {
        Recorder {
            sets: LabelSets::new(settings),
            families,
            telemetry,
            servers,
            classes: Classes::new(&settings.prompt_classes, settings.max_label_sets),
        }
    }

    /// Adds the live counts gathered since the last call to their series. Never called by a data path thread.
    pub(crate) fn settle(&self) {
        let mut table = self.sets.table();
        self.adopt(&mut table);
        for (labels, counts) in self.sets.overflowed() {
            let Resolved { handles, .. } = self.resolve(&mut table, &Arc::new(labels), false, None);
            handles.drain(counts, &mut table.spare, self.sets.now());
        }
        table.drain(self.sets.now());
    }

    /// Resolves the label sets of streams whose labels were new when the stream started.
    fn adopt(&self, table: &mut Table) {
        for (labels, counts) in self.sets.take_fresh() {
            let Resolved { handles, .. } = self.resolve(table, &Arc::new(labels), true, Some(&counts));
            if !Arc::ptr_eq(&handles.counts, &counts) {
                table.apart.push((counts, handles));
            }
        }
    }

    /// The series of these labels. `admitted`: the response proves that its model exists, so the name may get a label
    /// value.
    fn handles(&self, labels: &Arc<Labels>, admitted: bool) -> Arc<Handles> {
        let found = self.sets.by_labels.load().get(labels).cloned();
        let handles = found.unwrap_or_else(|| {
            let mut table = self.sets.table();
            self.adopt(&mut table);
            let resolved = self.resolve(&mut table, labels, admitted, None);
            self.telemetry.folded_models.fetch_add(u64::from(resolved.folded_model), Ordering::Relaxed);
            self.telemetry.folded_label_sets.fetch_add(u64::from(resolved.folded_set), Ordering::Relaxed);
            resolved.handles
        });
        handles.touch(self.sets.now());
        handles
    }

    fn resolve(
        &self,
        table: &mut Table,
        labels: &Arc<Labels>,
        admitted: bool,
        counts: Option<&Arc<LiveCounts>>,
    ) -> Resolved {
        let now = self.sets.now();
        if table.names.is_full() || table.by_known.len() >= self.sets.most {
            table.touch_open(now);
        }
        let mut replaced = Vec::new();
        let mut intern = |raw: &Option<Box<str>>| table.names.intern(raw.as_deref()?, admitted, now, &mut replaced);
        let response = intern(&labels.response_model);
        // A request counts once for a name.
        let is_same = labels.request_model == labels.response_model;
        let request = if is_same { response.clone() } else { intern(&labels.request_model) };
        let any = |is: fn(&Name) -> bool| [&request, &response].into_iter().flatten().any(is);
        let folded_model = any(|name| name.entry.is_none());
        let has_own_name = any(|name| name.entry.is_some());
        let mut gone = Vec::new();
        for name in replaced {
            gone.extend(table.by_known.extract_if(|_, handles| handles.names(&name)));
        }
        let known = self.known(labels, request.as_ref(), response.as_ref());
        let mut folded_set = table.by_known.len() >= self.sets.most && !table.by_known.contains_key(&known);
        // Without a name of its own, the folded label set is the same.
        if folded_set
            && has_own_name
            && let Some(replaced) = table.make_room(&known, now)
        {
            gone.push(replaced);
            folded_set = false;
        }
        self.remove(table, gone);
        let (known, names) = if folded_set {
            // Few such label sets can exist, because all remaining attributes are from closed sets.
            let other = |raw: &Option<Box<str>>| raw.as_ref().map(|_| table.names.other());
            (
                self.known(labels, other(&labels.request_model).as_ref(), other(&labels.response_model).as_ref()),
                [None, None],
            )
        } else {
            (known, [request, response].map(|name| name.and_then(|name| name.entry)))
        };
        let handles = self.place(table, known, names, labels.route.is_read(), counts);
        if admitted {
            self.sets.folding.store(folded_model || folded_set, Ordering::Relaxed);
        }
        // A folded name may get its own label later, so the result must not be cached.
        if !folded_model && !folded_set {
            self.sets.remember(labels, &handles);
        }
        Resolved { handles, folded_model, folded_set }
    }

    /// The label set with these attributes, which is created if it does not exist.
    fn place(
        &self,
        table: &mut Table,
        known: Known,
        names: [Option<Arc<Label>>; 2],
        is_read: bool,
        counts: Option<&Arc<LiveCounts>>,
    ) -> Arc<Handles> {
        let handles = table.by_known.entry(known).or_insert_with_key(|known| {
            let counts = counts.cloned().unwrap_or_else(|| Arc::new(LiveCounts::new(self.sets.native)));
            let handles = Handles::new(Arc::clone(&self.families), known.clone(), counts, names);
            if is_read {
                let mut found = handles.found();
                for (outcome, class) in failure::EXPECTED {
                    found.add(Id::Requests, ended(outcome, class), 0);
                }
            }
            Arc::new(handles)
        });
        Arc::clone(handles)
    }

    /// Removes label sets that have left the table, together with their series. What their open streams count from now
    /// on is counted as `other`.
    fn remove(&self, table: &mut Table, gone: Vec<(Known, Arc<Handles>)>) {
        if gone.is_empty() {
            return;
        }
        for (known, handles) in &gone {
            let mut counts: Vec<_> =
                std::iter::once(&handles.counts).filter(|counts| counts.is_used()).cloned().collect();
            counts.extend(table.apart.extract_if(.., |(_, of)| Arc::ptr_eq(of, handles)).map(|(counts, _)| counts));
            if !counts.is_empty() {
                let folded = known.iter().map(|(key, value)| match key {
                    Key::RequestModel | Key::ResponseModel => (*key, Value::Text(table.names.other().text)),
                    _ => (*key, value.clone()),
                });
                let other = self.place(table, folded.collect(), [None, None], false, None);
                table.apart.extend(counts.into_iter().map(|counts| (counts, Arc::clone(&other))));
            }
        }
        let gone: Vec<_> = gone.into_iter().map(|(_, handles)| handles).collect();
        self.sets.forget(&gone);
        gone.iter().for_each(|handles| self.classes.release(&handles.admitted));
        drop(gone);
        self.families.remove_unused();
    }

    /// The attributes of a label set, in the order of the table.
    fn known(&self, labels: &Labels, request: Option<&Name>, response: Option<&Name>) -> Known {
        let mut known = vec![(Key::Operation, Value::Word(labels.route.operation()))];
        known.extend(labels.engine.map(|engine| (Key::Provider, engine.into())));
        known.extend(request.map(|name| (Key::RequestModel, Value::Text(Arc::clone(&name.text)))));
        known.extend(response.map(|name| (Key::ResponseModel, Value::Text(Arc::clone(&name.text)))));
        known.extend_from_slice(self.servers.of(labels.listener));
        known.extend(labels.streaming.map(|streaming| (Key::Streaming, Value::Flag(streaming))));
        known
    }

    /// Records an ended request. `exemplar` points to its span, if the span is kept.
    pub(crate) fn record(&self, record: &Record, exemplar: Option<Exemplar>) {
        let handles = self.handles(&record.labels, record.proves_model());
        if let (Some(gap), Some(exemplar)) = (record.gaps.longest, exemplar) {
            // The exemplar refers to a bucket, so the gap must be counted first.
            self.settle();
            if record.labels.route.is_read() {
                handles.live().longest(gap, record.gaps.longest_tokens, exemplar);
            }
        }
        let found = &mut *handles.found();
        found.add(Id::Requests, ended(record.outcome, failure::status_class(record.response.status)), 1);
        found.add(Id::RequestBody, NONE, record.request.bytes);
        found.add(Id::ResponseBody, NONE, record.response.bytes);
        // Requests on other paths are counted but not parsed: nothing else is known about them.
        if record.labels.route.is_read() {
            let (class, folded) = self.classes.of(record, &handles.admitted);
            if folded {
                self.telemetry.folded_classes.fetch_add(1, Ordering::Relaxed);
            }
            times(found, record, &class, exemplar);
            tokens(found, record);
            rates(found, record, &class, exemplar);
            fields(found, record, exemplar);
        }
    }

    /// Counts requests for which no record was kept.
    pub(crate) fn count_unrecorded(&self, labels: &Labels, outcome: Outcome, requests: u64) {
        let handles = self.handles(&Arc::new(labels.clone()), false);
        handles.found().add(Id::Requests, ended(outcome, None), requests);
    }
}

/// The attributes of an ended request.
fn ended(outcome: Outcome, class: Option<&'static str>) -> Extra {
    let outcome = (Key::Outcome, outcome.as_str().into());
    [Some(outcome), class.map(|class| (Key::StatusClass, class.into())), None]
}

fn error(record: &Record) -> Extra {
    [failure::error_type(record).map(|error| (Key::ErrorType, error.into())), None, None]
}

fn times(found: &mut SeriesCache, record: &Record, class: &Class, exemplar: Option<Exemplar>) {
    // An incomplete request has no last byte, so its duration starts at the first byte.
    let duration = record.since_requested(Some(record.times.ended)).unwrap_or(record.times.ended).as_secs_f64();
    found.observe(Id::RequestDuration, error(record), duration, exemplar);

    let any = Class::default();
    let mut wait = |id, then, class: &Class| {
        if let Some(wait) = record.since_requested(then) {
            let outcome = (Key::OutcomeClass, failure::outcome_class(record.outcome).into());
            found.observe(id, class.and(Some(outcome)), wait.as_secs_f64(), exemplar);
        }
    };
    wait(Id::OwnTimeToHeaders, record.times.headers, &any);
    if record.labels.streaming == Some(true) {
        wait(Id::OwnTimeToFirstEvent, record.times.first_event, &any);
        // These times are recorded only if the client did not delay the first token.
        if record.time_to_first_token().is_some() {
            wait(Id::OwnTimeToFirstToken, record.times.first_token, class);
            wait(Id::OwnTimeToFirstVisible, record.times.first_visible, class);
        }
        found.observe(Id::DeliveryBlocked, NONE, record.blocked.total().as_secs_f64(), exemplar);
        // The conventions define these metrics for successful responses only. For non-streamed responses, token times
        // are unknown.
        if record.outcome.is_ok() {
            if let Some(first) = record.time_to_first_token() {
                found.observe(Id::TimeToFirstToken, class.and(None), first.as_secs_f64(), exemplar);
            }
            if let Some(per_token) = record.time_per_output_token() {
                found.observe(Id::TimePerOutputToken, NONE, per_token, exemplar);
            }
        }
    }
    if record.times.first_token.is_none() && !record.unread && record.labels.route.generates() {
        let outcome = one(Key::Outcome, record.outcome.as_str());
        found.observe(Id::WaitWithoutFirstToken, outcome, duration, exemplar);
    }
    if let Some(queue) = record.engine.queue {
        let source = one(Key::Source, queue.source.as_str());
        found.observe(Id::QueueTime, source, queue.value.as_secs_f64(), exemplar);
    }
    phases(found, record, exemplar);
}

/// Observes the duration of each phase. A phase known to have taken no time is observed as zero; backpressure is
/// observed only where it occurred.
fn phases(found: &mut SeriesCache, record: &Record, exemplar: Option<Exemplar>) {
    let mut observe = |kind: PhaseKind, length: Duration| {
        let phase = one(Key::Phase, kind.as_str());
        found.observe(Id::PhaseDuration, phase, length.as_secs_f64(), exemplar);
    };
    let phases = Phases::of(record);
    for interval in phases.iter() {
        observe(interval.kind, interval.active());
    }
    if !phases.blocked().is_zero() {
        observe(PhaseKind::DeliveryBlocked, phases.blocked());
    }
}

/// Records the values that the table assigns to a metric, and the zero window, which is recorded only if it occurred.
fn fields(found: &mut SeriesCache, record: &Record, exemplar: Option<Exemplar>) {
    for field in FIELDS {
        let Some(id) = field.metric else { continue };
        match (field.value)(record) {
            Reading::Value(count) => count.as_u64().into_iter().for_each(|count| found.add(id, NONE, count)),
            time => time.seconds().into_iter().for_each(|time| found.observe(id, NONE, time, exemplar)),
        }
    }
    if let Some(time) = record.network.zero_window.filter(|time| !time.is_zero()) {
        found.observe(Id::NetworkZeroWindow, NONE, time.as_secs_f64(), exemplar);
    }
}

fn tokens(found: &mut SeriesCache, record: &Record) {
    let mut own = |id, count: Option<Count>| {
        if let Some(count) = count {
            found.add(id, one(Key::Source, count.source.as_str()), count.tokens);
        }
    };
    own(Id::InputTokens, record.tokens.input);
    own(Id::OutputTokens, record.tokens.output);
    for reason in &record.response.finish_reasons {
        found.add(Id::Finishes, one(Key::FinishReason, reason.as_str()), 1);
    }

    // The conventions' metrics require the engine's count, not a lower bound.
    let [input, output] = [record.tokens.input, record.tokens.output].map(|count| count.and_then(Count::exact));
    for (word, id, count) in [("input", Id::OperationInput, input), ("output", Id::OperationOutput, output)] {
        if let Some(count) = count {
            found.observe(Id::TokenUsage, one(Key::TokenType, word), count as f64, None);
            found.observe(id, error(record), count as f64, None);
        }
    }
    // The newest conventions count every operation; an operation without usage adds 0 with modality `unknown`.
    // The conventions have no modality for videos.
    let parts = &record.tokens.parts;
    let input_parts = [("audio", parts.input_audio), ("image", parts.input_image), ("unknown", parts.input_video)];
    modalities(found, Id::UsageInput, input, &input_parts);
    if output.is_some() || record.labels.route.generates() {
        modalities(found, Id::UsageOutput, output, &[("audio", parts.output_audio)]);
    }
    // No engine reports the modality of cached tokens. For a text-only prompt, it is `text`.
    let mixed = input_parts.iter().any(|(_, tokens)| tokens.is_some_and(|tokens| tokens > 0));
    let mut subset = |id, count: Option<u64>, modality| {
        if let Some(count) = count {
            found.add(id, one(Key::TokenModality, modality), count);
        }
    };
    let cached = if mixed { "unknown" } else { "text" };
    subset(Id::UsageCacheRead, record.tokens.cached, cached);
    subset(Id::UsageCacheWrite, parts.cache_creation, cached);
    subset(Id::UsageReasoning, record.tokens.reasoning, "text");
}

/// Splits `all` by modality: parts reported by the engine are added to their own series, the rest to `text`. If the
/// parts exceed `all`, the report is inconsistent and everything counts as `unknown`.
fn modalities(found: &mut SeriesCache, id: Id, all: Option<u64>, parts: &[(&'static str, Option<u64>)]) {
    let mut add = |modality, tokens| found.add(id, one(Key::TokenModality, modality), tokens);
    let reported = || parts.iter().filter_map(|(modality, tokens)| Some((*modality, tokens.filter(|n| *n > 0)?)));
    let rest = reported().fold(all, |left, (_, tokens)| left?.checked_sub(tokens));
    match rest {
        Some(text) => {
            reported().for_each(|(modality, tokens)| add(modality, tokens));
            add("text", text);
        }
        None => add("unknown", all.unwrap_or(0)),
    }
}

fn rates(found: &mut SeriesCache, record: &Record, class: &Class, exemplar: Option<Exemplar>) {
    if let Some((rate, source)) = decode_rate(record) {
        found.observe(Id::DecodeRate, one(Key::Source, source.as_str()), rate, exemplar);
    }
    if let Some((rate, source)) = prefill_rate(record) {
        found.observe(Id::PrefillRate, class.and(Some((Key::Source, source.into()))), rate, exemplar);
    }
}

/// The best known decode rate and the source of its token count, which marks lower bounds and estimates. `None` if the
/// rate is unknown, several choices share the stream, or a slow client limited the rate.
fn decode_rate(record: &Record) -> Option<(f64, CountSource)> {
    if record.request.choices > 1 || record.is_client_limited() {
        return None;
    }
    let exact = || Some((record.rate.exact?, record.tokens.output?.source));
    let estimated = || Some((record.rate.estimated?, CountSource::Tokenizer));
    exact().or_else(estimated).or_else(|| Some((record.rate.at_least?, CountSource::Deltas)))
}

/// Uncached prompt tokens divided by the time to the first token minus the queue time, and the source of the queue
/// time. `None` unless all values are known and the response was streamed.
fn prefill_rate(record: &Record) -> Option<(f64, &'static str)> {
    let queue = record.engine.queue?;
    let input = record.tokens.input?.exact()?;
    let uncached = input.checked_sub(record.tokens.cached?).filter(|tokens| *tokens > 0)?;
    let first = record.time_to_first_token()?;
    let prefill = first.checked_sub(queue.value).filter(|span| !span.is_zero())?;
    let streamed = record.labels.streaming == Some(true);
    streamed.then(|| (uncached as f64 / prefill.as_secs_f64(), queue.source.as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Recorder {
        /// Holds all locks that threads outside the data path take, except the halves of live counts.
        pub(crate) fn while_locked(&self, work: impl FnOnce()) {
            let _table = self.sets.table();
            self.families.while_locked(work);
        }
    }
}
