// Requests to the server. The key is kept as long as the tab.

const dialog = document.getElementById("key-dialog");
const field = document.getElementById("key");
const KEY = "stillbox-api-key";
const ATTEMPTS = 5;

let prompting = null;

/** Prompts for a key; resolves to whether there is a new one. */
function promptForKey() {
  prompting ??= new Promise((resolve) => {
    dialog.returnValue = "";
    dialog.addEventListener("close", () => {
      prompting = null;
      const given = field.value.trim();
      field.value = "";
      if (given) sessionStorage.setItem(KEY, given);
      resolve(Boolean(given));
    }, { once: true });
    dialog.showModal();
  });
  return prompting;
}

const wait = (seconds) => new Promise((resolve) => setTimeout(resolve, 1000 * seconds));

/** Detects in a file. Throws an Error with the server's message. */
export async function detect(file, minScore) {
  for (let attempt = 1; ; attempt += 1) {
    const key = sessionStorage.getItem(KEY);
    let response;
    try {
      response = await fetch(`/detect?min_score=${minScore}`, {
        method: "POST",
        body: file,
        headers: { "Content-Type": "application/octet-stream", ...(key && { "X-API-Key": key }) },
      });
    } catch {
      throw new Error("The server does not respond.");
    }
    const answer = await response.json().catch(() => ({ error: response.statusText }));
    if (response.ok) return answer;
    if (response.status === 401) {
      // Another request may have prompted for the key meanwhile.
      if (sessionStorage.getItem(KEY) !== key || await promptForKey()) continue;
    } else if (response.status === 503 && attempt < ATTEMPTS) {
      await wait(Number(response.headers.get("Retry-After")) || 1);
      continue;
    }
    throw new Error(answer.error || `The server responded with status ${response.status}.`);
  }
}
