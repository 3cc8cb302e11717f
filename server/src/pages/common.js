'use strict';
// What both pages share. Text from the server goes into the page as text only.

const byId = (id) => document.getElementById(id);
const make = (tag, className, text) => {
  const node = document.createElement(tag);
  if (className) node.className = className;
  if (text !== undefined) node.textContent = text;
  return node;
};

// Private windows and strict settings may refuse storage: then a choice lasts as long as the page.
const kept = (() => {
  const memory = {};
  return {
    get(name) {
      try { return sessionStorage.getItem(name) ?? memory[name] ?? null; } catch { return memory[name] ?? null; }
    },
    set(name, value) {
      memory[name] = value;
      try { sessionStorage.setItem(name, value); } catch { /* See above. */ }
    },
  };
})();

const headers = (more) => {
  const key = kept.get('tokenrouter-key');
  return { ...more, ...(key ? { Authorization: `Bearer ${key}` } : {}) };
};

// The message of an error answer, whatever it looks like.
const problemOf = async (response) => {
  const text = await response.text();
  try {
    const { error } = JSON.parse(text);
    return { title: `${response.status}${error.code ? ` ${error.code}` : ''}`, message: error.message };
  } catch {
    return { title: `${response.status}`, message: text.slice(0, 400) || response.statusText };
  }
};

// Asks for an API key; `then` runs when one was entered.
const askForKey = (then) => {
  const form = byId('key-form');
  form.hidden = false;
  byId('key').focus();
  form.onsubmit = (event) => {
    event.preventDefault();
    kept.set('tokenrouter-key', byId('key').value.trim());
    form.hidden = true;
    then();
  };
};

const shorten = (number) => {
  if (number >= 1e9) return `${(number / 1e9).toFixed(1)}G`;
  if (number >= 1e6) return `${(number / 1e6).toFixed(1)}M`;
  if (number >= 1e5) return `${(number / 1e3).toFixed(0)}k`;
  return number.toLocaleString('en');
};
const percent = (share) => `${(share * 100).toFixed(share > 0 && share < 0.1 ? 1 : 0)}%`;
const duration = (seconds) => {
  if (!Number.isFinite(seconds)) return '–';
  if (seconds < 1e-3) return `${(seconds * 1e6).toFixed(0)} µs`;
  if (seconds < 1) return `${(seconds * 1e3).toFixed(seconds < 0.01 ? 1 : 0)} ms`;
  if (seconds < 90) return `${seconds.toFixed(1)} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  if (seconds < 172800) return `${(seconds / 3600).toFixed(1)} h`;
  return `${Math.round(seconds / 86400)} days`;
};
const rate = (number) => (number >= 100 ? Math.round(number).toLocaleString('en') : number.toFixed(1));

// A bar of shares: one part per model, in its colour.
const shareBar = (bar, counts, names) => {
  while (bar.children.length < counts.length) bar.append(make('span', `c${bar.children.length % 8}`));
  const all = counts.reduce((sum, count) => sum + count, 0);
  counts.forEach((count, index) => { bar.children[index].style.flex = `${count} 0 0px`; });
  const words = counts.map((count, index) => `${names[index]} ${percent(all ? count / all : 0)}`);
  bar.setAttribute('aria-label', all ? words.join(', ') : 'no tokens yet');
};

byId('theme').onclick = () => {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === 'dark' : matchMedia('(prefers-color-scheme: dark)').matches;
  root.dataset.theme = dark ? 'light' : 'dark';
  kept.set('tokenrouter-theme', root.dataset.theme);
};
if (kept.get('tokenrouter-theme')) document.documentElement.dataset.theme = kept.get('tokenrouter-theme');
