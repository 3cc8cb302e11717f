mod control;
mod detok;
mod pair_check;
mod stop;
mod template;
mod tokenizer;
