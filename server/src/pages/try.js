const EXAMPLE = 'In January Mia has 19 apples. In February Mia picks 51 apples. In March Mia gives away 35 apples. How many apples does Mia have?';
let routes = [];
let modelNames = [];
let running = null;

// Small thresholds matter most: the slider's way is cubic.
const toThreshold = (place) => Number(((place / 1000) ** 3).toPrecision(3));
const toPlace = (threshold) => Math.round(Math.cbrt(threshold) * 1000);
let ownThreshold = null;

const routeNow = () => routes.find((route) => route.name === byId('route').value);

const showThreshold = () => {
  const route = routeNow();
  const known = route && typeof route.threshold === 'number' ? route.threshold : null;
  byId('threshold-field').hidden = !route || route.threshold === null;
  const now = ownThreshold ?? known ?? 0.5;
  byId('threshold').value = toPlace(now);
  byId('threshold-value').textContent = ownThreshold ?? route?.threshold ?? '';
  byId('threshold-reset').disabled = ownThreshold === null;
  const more = route?.algorithm === 'citer' ? 'Higher' : 'Lower';
  byId('threshold-hint').textContent = `${more} means more from ${modelNames[route?.models.find((model) => model !== route.entry)] ?? 'the other model'}`;
};

const load = async () => {
  const response = await fetch('/v1/status', { headers: headers() }).catch(() => null);
  if (!response) return fail({ title: 'No connection', message: 'The server does not answer.' });
  if (response.status === 401) return askForKey(load);
  if (!response.ok) return fail(await problemOf(response));
  const status = await response.json();
  routes = status.routes;
  modelNames = status.models.map((model) => model.name);
  byId('where').textContent = `${status.name} · ${modelNames.join(' + ')}`;
  const choices = routes.map((route) => {
    const option = make('option', '', route.models.length > 1 ? `${route.name}, by ${route.algorithm}` : `${route.name} alone`);
    option.value = route.name;
    return option;
  });
  byId('route').replaceChildren(...choices);
  byId('max-tokens').max = status.kv.context_len;
  if (status.name === 'demo' && !byId('prompt').value) byId('prompt').value = EXAMPLE;
  showThreshold();
  drawLegend([]);
};

const fail = ({ title, message }) => {
  byId('error-title').textContent = title;
  byId('error-text').textContent = message;
  byId('error').hidden = false;
};

// One answer as it grows. Token counts come from the server's list of writers, never from pieces of text.
class Answer {
  constructor() {
    this.started = performance.now();
    this.first = null;
    this.last = null;
    this.counts = [];
    this.writer = null;
    this.switches = 0;
    this.run = null;
    this.runLength = 0;
    this.text = byId('answer');
    this.text.replaceChildren();
    this.text.classList.add('caret');
    byId('ribbon').replaceChildren();
    byId('details').hidden = true;
    byId('error').hidden = true;
    byId('ending').textContent = '';
    for (const id of ['tokens-total', 'speed', 'ttft', 'share', 'handoffs', 'prompt-tokens']) byId(id).textContent = '–';
  }

  total() {
    return this.counts.reduce((sum, count) => sum + (count ?? 0), 0);
  }

  token(model) {
    const now = performance.now();
    this.first ??= now;
    this.last = now;
    this.counts[model] = (this.counts[model] ?? 0) + 1;
    if (this.writer !== model) {
      if (this.writer !== null) this.switches += 1;
      this.writer = model;
      this.run = make('span', `c${model % 8}`);
      this.runLength = 0;
      byId('ribbon').append(this.run);
    }
    this.runLength += 1;
    this.run.style.flex = `${this.runLength} 0 0px`;
  }

  piece(text, models, thought) {
    models.forEach((model) => this.token(model));
    if (!text) return;
    const writer = models.length ? models[models.length - 1] : (this.writer ?? 0);
    const span = make('span', `tok c${writer % 8}`, text);
    span.dataset.model = writer;
    span.title = modelNames[writer] ?? '';
    // Thoughts and answer are paragraphs of their own.
    if (!this.part || this.thought !== thought) {
      this.thought = thought;
      this.part = make('div', thought ? 'thoughts' : '');
      this.text.append(this.part);
    }
    this.part.append(span);
  }

  chunk(chunk) {
    for (const choice of chunk.choices ?? []) {
      const models = choice.token_routing?.model_index ?? [];
      const delta = choice.delta ?? {};
      const thought = delta.reasoning_content ?? delta.reasoning ?? '';
      const said = choice.text ?? delta.content ?? '';
      this.piece(said || thought, models, !said && thought !== '');
      if (choice.finish_reason) this.ending = choice.finish_reason;
    }
    if (chunk.usage) byId('prompt-tokens').textContent = chunk.usage.prompt_tokens;
    if (chunk.token_routing) this.summary(chunk.token_routing);
    this.draw();
  }

  draw() {
    const all = this.total();
    if (!all) return;
    const seconds = (this.last - this.first) / 1000;
    byId('tokens-total').textContent = all.toLocaleString('en');
    byId('ttft').textContent = duration((this.first - this.started) / 1000);
    byId('speed').textContent = all > 1 && seconds > 0 ? rate((all - 1) / seconds) : '–';
    const entry = routeNow()?.entry ?? 0;
    byId('share').textContent = percent(1 - (this.counts[entry] ?? 0) / all);
    byId('share-label').textContent = routeNow()?.models.length > 2 ? `Not by ${modelNames[entry]}` : 'Large model';
    drawLegend(this.counts);
    const words = modelNames.map((name, index) => `${name} wrote ${this.counts[index] ?? 0}`);
    byId('ribbon').setAttribute('aria-label', `Tokens in order, coloured by writer: ${words.join(', ')}`);
  }

  // What only the server knows.
  summary(routing) {
    byId('handoffs').textContent = routing.switches;
    const rows = routing.models.map((model) => {
      const row = make('tr');
      const name = make('td');
      name.append(make('span', `swatch c${model.index % 8}`), model.name);
      const numbers = [model.committed_tokens, model.discarded_tokens, model.forward_steps];
      const times = [model.queue_ms, model.compute_ms, model.pending_ms].map((ms) => (ms === undefined ? '–' : duration(ms / 1000)));
      row.append(name, ...[...numbers, ...times].map((value) => make('td', '', String(value))));
      return row;
    });
    byId('by-model').replaceChildren(...rows);
    byId('details').hidden = false;
    if (routing.degraded) fail({ title: 'Degraded', message: 'A model of this route is lost; others wrote in its place.' });
  }

  end(words) {
    this.text.classList.remove('caret');
    byId('ending').textContent = words;
    this.draw();
  }
}

const drawLegend = (counts) => {
  const all = counts.reduce((sum, count) => sum + (count ?? 0), 0);
  const items = (routeNow()?.models ?? []).map((model) => {
    const item = make('li');
    const count = counts[model] ?? 0;
    item.append(make('span', `swatch c${model % 8}`), make('b', '', modelNames[model]), all ? ` ${count} · ${percent(count / all)}` : '');
    return item;
  });
  byId('legend').replaceChildren(...items);
};

const body = () => {
  const prompt = byId('prompt').value;
  const chat = document.querySelector('[name="kind"]:checked').value === 'chat';
  const routing = { return: 'tokens', ...(ownThreshold === null ? {} : { threshold: ownThreshold }) };
  const common = {
    model: byId('route').value,
    temperature: Number(byId('temperature').value),
    max_tokens: Number(byId('max-tokens').value),
    stream: true,
    stream_options: { include_usage: true },
    token_routing: routing,
  };
  return chat
    ? ['/v1/chat/completions', { ...common, messages: [{ role: 'user', content: prompt }] }]
    : ['/v1/completions', { ...common, prompt }];
};

// Server-sent events, as `data:` lines that each end in an empty line.
async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let buffer = '';
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    buffer += value;
    const parts = buffer.split(/\r?\n\r?\n/);
    buffer = parts.pop();
    for (const part of parts) {
      if (part.startsWith('data: ')) yield part.slice(6);
    }
  }
}

const ENDINGS = { stop: 'finished', length: 'cut at the most tokens', abort: 'aborted', tool_calls: 'calls a tool' };

const send = async () => {
  if (running || !byId('prompt').value) return;
  running = new AbortController();
  byId('send').disabled = true;
  byId('stop').disabled = false;
  const answer = new Answer();
  let words = 'broke off';
  try {
    const [path, request] = body();
    const response = await fetch(path, {
      method: 'POST', headers: headers({ 'Content-Type': 'application/json' }), body: JSON.stringify(request), signal: running.signal,
    });
    if (response.status === 401) askForKey(send);
    if (!response.ok) {
      fail(await problemOf(response));
      words = '';
      return;
    }
    for await (const data of events(response)) {
      if (data === '[DONE]') break;
      const chunk = JSON.parse(data);
      if (chunk.error) {
        fail({ title: 'The answer broke off', message: chunk.error.message });
        return;
      }
      answer.chunk(chunk);
    }
    words = ENDINGS[answer.ending] ?? words;
  } catch (error) {
    if (error.name === 'AbortError') words = 'stopped';
    else fail({ title: 'The connection broke', message: String(error.message) });
  } finally {
    answer.end(words);
    running = null;
    byId('send').disabled = false;
    byId('stop').disabled = true;
  }
};

byId('composer').onsubmit = (event) => { event.preventDefault(); send(); };
byId('stop').onclick = () => running?.abort();
byId('prompt').onkeydown = (event) => {
  if (event.key === 'Enter' && (event.ctrlKey || event.metaKey)) { event.preventDefault(); send(); }
};
byId('route').onchange = () => { ownThreshold = null; showThreshold(); drawLegend([]); };
byId('threshold').oninput = () => { ownThreshold = toThreshold(byId('threshold').value); showThreshold(); };
byId('threshold-reset').onclick = () => { ownThreshold = null; showThreshold(); };
byId('marked').onchange = () => byId('answer').classList.toggle('marked', byId('marked').checked);
load();
