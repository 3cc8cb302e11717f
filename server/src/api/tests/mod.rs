mod answer;
mod lines;
mod logprobs;
mod prepare;
mod requests;
mod stream;
