mod answer;
mod lines;
mod parts;
mod prepare;
mod requests;
mod stream;
mod tokenize;
