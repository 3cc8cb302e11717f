//! From messages to a rendered prompt: guarding, rendering, and cutting where the last message is to go on.

use crate::text::control::GuardedChat;
use crate::text::{RenderedPrompt, TextError, TextModel};
use serde_json::{Map, Value};
use std::path::PathBuf;

/// What a deployment says about its text side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextOptions {
    /// A chat template to use instead of the checkpoint's.
    pub template: Option<PathBuf>,
    /// Keep the texts of messages from becoming control tokens (bug log L31). Off, a user's `<|im_end|>` ends a turn.
    pub guard_text: bool,
}

impl Default for TextOptions {
    fn default() -> Self {
        Self { template: None, guard_text: true }
    }
}

/// What a chat request passes to the template besides its messages.
#[derive(Clone, Debug, PartialEq)]
pub struct ChatOptions {
    /// Tool definitions, or `None`.
    pub tools: Option<Value>,
    /// Documents to answer from, or `None`.
    pub documents: Option<Value>,
    /// End the prompt with the opening of the assistant's turn.
    pub add_generation_prompt: bool,
    /// Leave the last message open, for the model to go on with it.
    pub continue_final_message: bool,
    /// Tokenize the rendered text with the tokenizer's own special tokens added. Off for chats: the template
    /// writes them.
    pub add_special_tokens: bool,
    /// The name of one of the checkpoint's templates, or the source of another, instead of the usual choice.
    pub template: Option<String>,
    /// Further template variables, such as `enable_thinking`.
    pub kwargs: Map<String, Value>,
}

impl Default for ChatOptions {
    fn default() -> Self {
        Self {
            tools: None,
            documents: None,
            add_generation_prompt: true,
            continue_final_message: false,
            add_special_tokens: false,
            template: None,
            kwargs: Map::new(),
        }
    }
}

impl TextModel {
    /// Renders a chat with the checkpoint's template; `messages` is a list of message objects.
    ///
    /// # Errors
    /// [`TextError::NoTemplate`], [`TextError::Raised`] when the template refuses, [`TextError::Render`] when
    /// it fails, [`TextError::Continue`] when it does not show the message that is to go on.
    pub fn chat_prompt(&self, messages: &Value, options: &ChatOptions) -> Result<RenderedPrompt, TextError> {
        let mut guarded = self.guard().mark_chat(messages, options).ok_or(TextError::ControlText)?;
        let open = if options.continue_final_message { Some(OpenMessage::mark(&mut guarded)?) } else { None };
        let mut text = self.template().render(&guarded.messages, &guarded.options)?;
        if let Some(open) = open {
            open.cut(&mut text)?;
        }
        Ok(guarded.marks.into_prompt(text, options.add_special_tokens))
    }
}

/// A last message that goes on. Its end is marked before rendering and looked for afterwards, as transformers does,
/// so that it is found whatever the template makes of the text before.
struct OpenMessage {
    text: String,
    mark: char,
}

impl OpenMessage {
    /// Marks the end of the last message: with a character that occurs nowhere else, and a space, which shows
    /// whether the template trims.
    fn mark(guarded: &mut GuardedChat) -> Result<Self, TextError> {
        let mark = guarded.spare;
        let last = guarded.messages.as_array_mut().and_then(|messages| messages.last_mut());
        let content = last.and_then(|message| message.get_mut("content")).ok_or(TextError::Continue)?;
        let text = content.as_str().ok_or(TextError::Continue)?.to_owned();
        *content = format!("{text}{mark} ").into();
        Ok(Self { text, mark })
    }

    /// Cuts a rendered text behind the message.
    fn cut(&self, rendered: &mut String) -> Result<(), TextError> {
        let end = rendered.rfind(self.mark).ok_or(TextError::Continue)?;
        if !rendered.contains(self.text.trim()) {
            return Err(TextError::Continue);
        }
        let kept = rendered[end + self.mark.len_utf8()..].starts_with(' ');
        let end = if kept { end } else { rendered[..end].trim_end().len() };
        rendered.truncate(end);
        Ok(())
    }
}
