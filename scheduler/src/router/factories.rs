//! From parameters to the routers of this crate.

use super::params::{ParamReader, RouterError};
use super::registry::Factory;
use super::{Choice, Fixed, HeadKind, Mixture, Query, RStitch, Router, Scored, Single, Source, Threshold};

type Built = Result<Box<dyn Router>, RouterError>;

/// Every router of this crate under its name.
pub(super) fn builtin() -> [(&'static str, Factory); 8] {
    let head = |kind: HeadKind| -> (&'static str, Factory) {
        (kind.name(), Box::new(move |params: &mut ParamReader<'_>| scored(kind, params)))
    };
    let [r2r, citer, co_llm] = HeadKind::OF_TOKENS.map(head);
    [
        ("single", Box::new(single)),
        ("fixed", Box::new(fixed)),
        r2r,
        citer,
        co_llm,
        ("r-stitch", Box::new(r_stitch)),
        ("me", Box::new(mixture)),
        ("query", Box::new(query)),
    ]
}

fn single(params: &mut ParamReader<'_>) -> Built {
    let model = params.model("model", params.spec().entry)?;
    Ok(Box::new(Single::new(model)))
}

fn fixed(params: &mut ParamReader<'_>) -> Built {
    let peer = params.peer()?;
    let fraction = params.float("fraction", f64::NAN, 0.0, 1.0)?;
    if fraction.is_nan() {
        return Err(params.missing("fraction", "a number from 0 to 1"));
    }
    Ok(Box::new(Fixed::new(params.spec().entry, peer, fraction)))
}

fn scored(kind: HeadKind, params: &mut ParamReader<'_>) -> Built {
    let (entry, peer) = (params.spec().entry, params.peer()?);
    let (head, stored) = params.head(entry, kind.name(), kind.direction())?;
    let threshold = params.threshold_or(stored.map(|stored| (stored, Source::File)))?;
    Ok(Box::new(Scored::new(kind, [entry, peer], head, threshold)))
}

fn r_stitch(params: &mut ParamReader<'_>) -> Built {
    let peer = params.peer()?;
    let published = (Threshold::Value(RStitch::DEFAULT_THRESHOLD), Source::Published);
    let (threshold, source) = params.threshold_or(Some(published))?;
    Ok(Box::new(RStitch::new(params.spec().entry, peer, threshold).from_source(source)))
}

fn mixture(params: &mut ParamReader<'_>) -> Built {
    let models = params.spec().models;
    if models < 2 {
        return Err(params.models(format!("it needs two models or more, but {models} is configured")));
    }
    let weights = params.numbers("weights")?;
    let draw_at_admission = params.boolean("draw_at_admission", false)?;
    let raw = params.raw("weights");
    let wrong = |params: &ParamReader<'_>, want: String| match raw {
        Some(raw) => params.bad("weights", raw, want),
        None => params.models(want),
    };
    let weights = weights.unwrap_or_else(|| vec![1.0; models]);
    if weights.len() != models {
        return Err(wrong(params, format!("{models} numbers, one for each model")));
    }
    match Mixture::new(params.spec().entry, &weights, draw_at_admission) {
        Ok(router) => Ok(Box::new(router)),
        Err(error) => Err(wrong(params, error.to_string())),
    }
}

/// Three ways to choose. Only the one that reads a head is named by its `head`: a number alone is compared with the
/// score that comes with a request.
fn query(params: &mut ParamReader<'_>) -> Built {
    let (entry, peer) = (params.spec().entry, params.peer()?);
    let share = params.share("fraction")?;
    let by_head = params.raw("head").is_some();
    let by_score = params.raw("threshold").is_some();
    let choice = match share {
        Some(_) if by_head => {
            return Err(params.models("`fraction` excludes a router file: the head chooses, not a draw"));
        }
        Some(_) if by_score => return Err(params.models("`fraction` and `threshold` exclude each other")),
        Some(share) => Choice::Share(share),
        None if by_head => {
            let kind = HeadKind::Query;
            let (head, stored) = params.head(entry, kind.name(), kind.direction())?;
            let (threshold, source) = params.threshold_or(stored.map(|stored| (stored, Source::File)))?;
            Choice::Head { head, threshold, source }
        }
        None if by_score => Choice::Score(params.threshold_or(None)?.0),
        None => {
            let ways =
                "`fraction` (of the requests), `threshold` (of their scores) or a router file is needed";
            return Err(params.models(ways));
        }
    };
    Ok(Box::new(Query::new([entry, peer], choice)))
}
