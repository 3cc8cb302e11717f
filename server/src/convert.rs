//! `tokenrouter convert-router`: the files that the published trainers leave become router files.
//!
//! | input | from |
//! | --- | --- |
//! | `X.pt`, `X_all.pt` | R2R's trainer (slim, and with a copy of the embedding) |
//! | `mlp_iter_N.pth` | CITER's trainer: a bare state dictionary |
//! | a checkpoint's folder | Co-LLM: the row of `<|defer|>` in the output matrix |
//! | `gperp_init.bin` | Co-LLM, first phase: that row alone |
//!
//! Torch files are pickles, which can hold calls of anything; ours is read by a machine that knows the few names that
//! these files need and runs nothing (`convert/pickle.rs`).

mod citer;
mod co_llm;
mod globals;
mod pickle;
mod r2r;
#[cfg(test)]
mod tests;
mod torch;
mod zip;

use std::path::{Path, PathBuf};

use tokenrouter_engine::heads::{HeadShape, ModelPrint, NamedTensor, RouterFile, write_router};
use tokenrouter_engine::model::Model;

use self::torch::TorchFile;

/// Flags of `convert-router`.
#[derive(Clone, Debug, clap::Args)]
pub struct ConvertArgs {
    /// The torch file, or the folder of a Co-LLM checkpoint.
    pub input: PathBuf,
    /// Folder of the model that the router reads (the small one); for a Co-LLM checkpoint, that folder itself.
    #[arg(long, value_name = "DIR")]
    pub model: Option<PathBuf>,
    /// Folder to write.
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,
    /// The threshold to store, 0 to 1, in place of the file's own.
    #[arg(long, allow_negative_numbers = true)]
    pub threshold: Option<f32>,
    /// Id of Co-LLM's defer token; without it the tokenizer is asked for `<|defer|>`.
    #[arg(long, value_name = "ID")]
    pub defer_id: Option<u32>,
    /// Replace a router that is in the folder already.
    #[arg(long)]
    pub force: bool,
}

/// What an input turned out to hold.
struct Found {
    shape: HeadShape,
    /// Width of the hidden state it reads.
    hidden: usize,
    threshold: Option<f32>,
    tensors: Vec<NamedTensor>,
}

/// Converts and says what was written.
///
/// # Errors
/// One line that names the file and what is wrong in it.
pub fn run(args: &ConvertArgs) -> Result<(), String> {
    let file = convert(args)?;
    let threshold = match file.threshold {
        Some(x) => format!("threshold {} {x}", file.direction()),
        None => "no threshold stored: the configuration must give one".to_owned(),
    };
    crate::cli::tell(&format!("{}: {} router, {threshold}", args.out.display(), file.shape.kind().name()));
    Ok(())
}

/// Converts; returns what `router.json` now says.
///
/// # Errors
/// As [`run`].
pub fn convert(args: &ConvertArgs) -> Result<RouterFile, String> {
    if let Some(x) = args.threshold.filter(|x| !(0.0..=1.0).contains(x)) {
        return Err(format!("--threshold is {x}; a number from 0 to 1 is needed: scores are probabilities"));
    }
    if !args.force && args.out.join("router.json").exists() {
        return Err(format!("{}: holds a router already; --force replaces it", args.out.display()));
    }
    let is_folder = args.input.is_dir();
    let mut found = if is_folder {
        co_llm::read_checkpoint(&args.input, args.defer_id)?
    } else {
        read_torch(&args.input, args.threshold.is_some())?
    };
    let model = match &args.model {
        Some(dir) => dir,
        None if is_folder => &args.input,
        None => return Err("--model is needed: the folder of the model that the router reads".into()),
    };
    let print = ModelPrint::read(model).map_err(|e| e.to_string())?;
    if found.hidden != print.hidden_size {
        return Err(format!(
            "{}: reads hidden states of {}, the model in {} has {}",
            args.input.display(),
            found.hidden,
            model.display(),
            print.hidden_size
        ));
    }
    // The id is one of the served model's only when that model is the extended checkpoint.
    if let (HeadShape::CoLlm(shape), true) = (&mut found.shape, *model != args.input) {
        shape.defer_id = args.defer_id.filter(|_| !is_folder);
    }
    let threshold = args.threshold.or(found.threshold);
    let file = RouterFile { shape: found.shape, threshold, owner: print.owner() };
    write_checked(&args.out, model, &file, &found.tensors)?;
    Ok(file)
}

fn read_torch(path: &Path, tuned: bool) -> Result<Found, String> {
    let (mut file, data) = TorchFile::open(path)?;
    let pickle = file.parse(&data)?;
    if r2r::is_one(&pickle) {
        r2r::read(&mut file, &pickle, tuned)
    } else if citer::is_one(&pickle) {
        citer::read(&mut file, &pickle)
    } else if co_llm::is_one(&pickle) {
        co_llm::read_row(&mut file, &pickle)
    } else {
        Err(file
            .error("the content", "is none of R2R's checkpoint, CITER's state dictionary, or Co-LLM's row"))
    }
}

/// Writes into a folder beside `out`, loads the router from there as a server would, and only then moves it in.
fn write_checked(out: &Path, model: &Path, file: &RouterFile, tensors: &[NamedTensor]) -> Result<(), String> {
    let name = out.file_name().ok_or_else(|| format!("--out {}: is no folder's name", out.display()))?;
    let beside = out.with_file_name(format!(".{}.new", name.to_string_lossy()));
    let outcome = write_router(&beside, file, tensors)
        .and_then(|()| Model::open(model)?.with_heads(std::slice::from_ref(&beside)))
        .map_err(|e| e.to_string())
        .and_then(|_| place(&beside, out));
    // What a failure leaves is of no use; that it cannot be removed is not the news.
    let _ = std::fs::remove_dir_all(&beside);
    outcome
}

/// Moves the router's files from `beside` into `out`.
fn place(beside: &Path, out: &Path) -> Result<(), String> {
    let failed = |e: std::io::Error| format!("{}: cannot be written: {e}", out.display());
    std::fs::create_dir_all(out).map_err(failed)?;
    for file in ["router.safetensors", "router.json"] {
        std::fs::rename(beside.join(file), out.join(file)).map_err(failed)?;
    }
    Ok(())
}
