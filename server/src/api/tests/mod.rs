mod answer;
mod lines;
mod prepare;
mod requests;
mod stream;
