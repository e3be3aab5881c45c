//! `/generate` as SGLang 0.5.23 writes it (recordings `native-generate-*`): text and ids are cumulative in every event.
//! LMDeploy's version (0.18, from its source) has the same members, but incremental.

use std::time::Instant;

use crate::server::api::Imitation;
use crate::server::dialect::AfterError;
use crate::server::dialect::Choice;
use crate::server::dialect::Context;
use crate::server::dialect::DEAD;
use crate::server::dialect::Dialect;
use crate::server::dialect::Summary;
use crate::server::dialect::Times;
use crate::server::dialect::Whole;
use crate::server::dialect::done;
use crate::server::dialect::json_text;
use crate::server::dialect::put;
use crate::server::engine::Finish;
use crate::server::front::Chunks;
use crate::server::front::unix_time;
use crate::server::generation::Piece;

/// A generation, of one sequence or several.
#[derive(Debug)]
pub(crate) struct Generate {
    context: Context,
    times: Times,
    first: Option<Instant>,
    /// The output of each sequence so far.
    said: Vec<(String, Vec<u32>)>,
}

impl Generate {
    pub(crate) fn new(context: Context) -> Generate {
        let said = (0..context.job.choices).map(|_| (String::new(), Vec::new())).collect();
        Generate { context, times: Times::default(), first: None, said }
    }

    fn incremental(&self) -> bool {
        self.context.job.engine == Imitation::LmDeploy
    }

    fn output(&self, text: &str, ids: &[u32], choice: usize, generated: u64, finish: Option<Finish>) -> String {
        let Context { job, identity, metrics, .. } = &self.context;
        let (text, ids, id) = (json_text(text), json_text(ids), &identity.id);
        let reason = match finish {
            None => "null".to_owned(),
            Some(Finish::Length) => format!(r#"{{"type":"length","length":{generated}}}"#),
            Some(_) => r#"{"type":"stop","matched":2}"#.to_owned(),
        };
        let (prompt, cached) = (job.prompt_tokens, job.cached_tokens);
        if self.incremental() {
            return format!(
                r#"{{"text":{text},"output_ids":{ids},"meta_info":{{"prompt_tokens":{prompt},"completion_tokens":{generated},"finish_reason":{reason}}}}}"#
            );
        }
        // `--enable-metrics` adds many more members, some of them only once.
        let (mut queue, mut versions, mut once) = (String::new(), String::new(), String::new());
        if *metrics {
            let now = unix_time();
            let (first, entry) = (now - self.times.decode, now - self.times.decode - self.times.prefill);
            queue = format!(
                r#""forward_entry_time":{:?},"prefill_finished_time":{:?},"queue_time":{:?},"#,
                entry.as_secs_f64(),
                first.as_secs_f64(),
                self.times.queue.as_secs_f64()
            );
            if finish.is_none() && generated == 1 {
                once = format!(r#","response_sent_to_client_ts":{:?}"#, now.as_secs_f64());
            }
        }
        if finish.is_some() {
            versions = format!(r#""weight_versions":[{{"version":"default","start":0,"end":{generated}}}],"#);
            once = format!(r#","e2e_latency":{:?}"#, self.times.total().as_secs_f64());
        }
        if *metrics && finish.is_some() {
            let (now, first_token) = (unix_time(), self.times.queue + self.times.prefill);
            let received = now - self.times.total();
            let sent = format!(r#","response_sent_to_client_ts":{:?}"#, (received + first_token).as_secs_f64());
            // A stream reports it before its end, a non-streamed response as the last member.
            let (before, after) = if job.stream { (sent.as_str(), "") } else { ("", sent.as_str()) };
            once.push_str(&format!(
                r#","request_received_ts":{:?},"first_token_latency":{:?},"api_server_dispatch_finish_ts":{:?}{before},"request_finished_ts":{:?},"decode_throughput":{:?}{after}"#,
                received.as_secs_f64(),
                first_token.as_secs_f64(),
                received.as_secs_f64(),
                now.as_secs_f64(),
                generated as f64 / self.times.total().as_secs_f64().max(1e-9),
            ));
        }
        let index = if job.choices > 1 { format!(r#","index":{choice}"#) } else { String::new() };
        format!(
            r#"{{"text":{text},"output_ids":{ids},"meta_info":{{"id":"{id}","finish_reason":{reason},"prompt_tokens":{prompt},"weight_version":"default","num_retractions":0,"storage_prefetch_wait":0.0,"storage_staging_wait":0.0,{queue}"reasoning_tokens":0,"completion_tokens":{generated},"cached_tokens":{cached},{versions}"cached_tokens_details":{{"device":{cached},"host":0}},"dp_rank":null{once}}}{index}}}"#
        )
    }
}

impl Dialect for Generate {
    fn begin(&mut self, _: &mut Chunks, times: &Times) {
        (self.times, self.first) = (*times, Some(Instant::now()));
    }

    fn tokens(&mut self, out: &mut Chunks, piece: &Piece) {
        self.times.decode = self.first.map(|first| first.elapsed()).unwrap_or_default();
        let choice = piece.choice as usize;
        let Some((text, ids)) = self.said.get_mut(choice) else { return };
        if self.context.job.engine == Imitation::LmDeploy {
            text.clear();
            ids.clear();
        }
        text.push_str(&piece.text);
        ids.extend_from_slice(&piece.ids);
        let Some((text, ids)) = self.said.get(choice) else { return };
        let output = self.output(text, ids, choice, piece.generated, piece.finish);
        out.chunk(|event| put!(event, "data: {output}\n\n"));
    }

    fn end(&mut self, out: &mut Chunks, _: &Summary, marked: bool) {
        if marked {
            done(out);
        }
    }

    fn error(&mut self, out: &mut Chunks) -> AfterError {
        out.chunk(|event| {
            let error = format!(r#""message":"{DEAD}","type":"InternalServerError","code":500"#);
            put!(event, "data: {{\"error\":{{{error}}}}}\n\n");
        });
        done(out);
        AfterError::Ends
    }

    fn broken(&mut self, out: &mut Chunks) {
        out.chunk(|event| event.extend_from_slice(b"data: {\"text\":\"\n\n"));
    }

    fn whole(&mut self, choices: &[Choice], summary: &Summary) -> Whole {
        self.times = summary.times;
        let output = |(index, choice): (usize, &Choice)| {
            self.output(&choice.text, &choice.ids, index, choice.ids.len() as u64, choice.finish)
        };
        let outputs: Vec<String> = choices.iter().enumerate().map(output).collect();
        match outputs.as_slice() {
            [one] => one.clone(),
            several => format!("[{}]", several.join(",")),
        }
        .into()
    }
}
