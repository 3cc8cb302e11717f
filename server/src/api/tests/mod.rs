mod answer;
mod lines;
mod logprobs;
mod parts;
mod prepare;
mod requests;
mod stream;
mod tokenize;
