//! The log: lines on stderr, for people or one JSON object each, with times in UTC to the millisecond.

use std::fmt::{self, Write as _};
use std::io::IsTerminal;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Map, Value};
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::FormatTime;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

use crate::config::LogFormat;

/// The variable that goes before everything else that says what is logged.
const FILTER: &str = "TOKENROUTER_LOG";

/// Starts the log. `level` is a level or a filter as tracing has them (`info,tokenrouter_server::net=debug`); the variable
/// `TOKENROUTER_LOG` goes before it.
///
/// # Errors
/// When the filter, from where it comes, is none.
pub(crate) fn start(format: LogFormat, level: &str) -> Result<(), String> {
    let (text, from) = match std::env::var(FILTER) {
        Ok(text) if !text.is_empty() => (text, FILTER),
        _ => (level.to_owned(), "log.level"),
    };
    let filter = EnvFilter::try_new(&text)
        .map_err(|e| format!("{from}: \"{text}\" is no level and no filter: {e}"))?;
    // A log that cannot be written is no reason to stop: by default its error is printed to the same place, and
    // that panics. A second start (a program that embeds the server) keeps the first.
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_timer(Utc)
        .with_ansi(std::io::stderr().is_terminal())
        .log_internal_errors(false);
    let _ = match format {
        LogFormat::Text => builder.try_init(),
        LogFormat::Json => builder.event_format(JsonLine).try_init(),
    };
    Ok(())
}

/// Times like `2026-11-29T10:05:00.123Z`.
struct Utc;

impl FormatTime for Utc {
    fn format_time(&self, out: &mut Writer<'_>) -> fmt::Result {
        out.write_str(&stamp(SystemTime::now()))
    }
}

fn stamp(time: SystemTime) -> String {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    let (days, second) = (since.as_secs() / 86_400, since.as_secs() % 86_400);
    let (year, month, day) = date(days);
    let (hour, minute, second, milli) = (second / 3600, second / 60 % 60, second % 60, since.subsec_millis());
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{milli:03}Z")
}

/// Year, month and day of a day after 1 January 1970: 400 years have 146,097 days, and counted from 1 March a leap day is
/// the last of its year.
fn date(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let (day, month) = (day - (153 * month + 2) / 5 + 1, if month < 10 { month + 3 } else { month - 9 });
    (era * 400 + year + u64::from(month <= 2), month, day)
}

/// One JSON object per event: `time`, `level`, `target`, `message`, and the event's fields beside them.
struct JsonLine;

impl<S, N> FormatEvent<S, N> for JsonLine
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, _: &FmtContext<'_, S, N>, mut out: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let mut fields = Fields(Map::new());
        let meta = event.metadata();
        fields.0.insert("time".into(), stamp(SystemTime::now()).into());
        fields.0.insert("level".into(), meta.level().as_str().to_ascii_lowercase().into());
        fields.0.insert("target".into(), meta.target().into());
        event.record(&mut fields);
        writeln!(out, "{}", Value::Object(fields.0))
    }
}

struct Fields(Map<String, Value>);

impl Visit for Fields {
    fn record_f64(&mut self, field: &Field, value: f64) {
        self.0.insert(field.name().into(), value.into());
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.0.insert(field.name().into(), value.into());
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.0.insert(field.name().into(), value.into());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.0.insert(field.name().into(), value.into());
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name().into(), value.into());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = write!(text, "{value:?}");
        self.0.insert(field.name().into(), text.into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::sync::{Arc, Mutex};
    use std::time::Duration;

    #[test]
    fn times_are_in_utc_with_milliseconds() {
        let at =
            |seconds: u64, millis: u64| stamp(UNIX_EPOCH + Duration::from_millis(seconds * 1000 + millis));
        assert_eq!(at(0, 0), "1970-01-01T00:00:00.000Z");
        assert_eq!(at(951_827_696, 7), "2000-02-29T12:34:56.007Z");
        assert_eq!(at(1_709_251_199, 999), "2024-02-29T23:59:59.999Z");
        assert_eq!(at(1_735_689_600, 0), "2025-01-01T00:00:00.000Z");
        assert_eq!(at(4_107_542_400, 0), "2100-03-01T00:00:00.000Z");
    }

    #[derive(Clone, Default)]
    struct Kept(Arc<Mutex<Vec<u8>>>);

    impl Write for Kept {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_json_line_holds_the_fields_and_stays_one_line() {
        let kept = Kept::default();
        let writer = kept.clone();
        let subscriber =
            tracing_subscriber::fmt().with_writer(move || writer.clone()).event_format(JsonLine).finish();
        tracing::subscriber::with_default(subscriber, || {
            let none: Option<f64> = None;
            tracing::warn!(id = "a\"\nb", tokens = 7, share = 0.5, none, client = %"x:1", "two\nlines");
        });
        let text = String::from_utf8(kept.0.lock().unwrap().clone()).unwrap();
        assert_eq!(text.lines().count(), 1, "{text}");
        let line: Value = serde_json::from_str(&text).unwrap();
        assert_eq!((&line["level"], &line["message"]), (&"warn".into(), &"two\nlines".into()));
        assert_eq!(
            (&line["id"], &line["tokens"], &line["share"]),
            (&"a\"\nb".into(), &7.into(), &0.5.into())
        );
        assert_eq!((&line["client"], line.get("none")), (&"x:1".into(), None));
        assert!(line["time"].as_str().is_some_and(|time| time.len() == 24 && time.ends_with('Z')), "{line}");
    }
}
