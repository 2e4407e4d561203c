"""A small server of the OpenAI chat API that behaves, or misbehaves, as the last message says."""

import json
import math
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Handler(BaseHTTPRequestHandler):
    server: "Server"

    def log_message(self, *args) -> None:
        pass

    def do_GET(self) -> None:
        if self.server.key and self.headers["Authorization"] != f"Bearer {self.server.key}":
            return self.refuse(401, "no such key")
        if self.path != "/v1/models":
            return self.refuse(404, "no such path")
        self.plain(200, {"data": [{"id": "served", "max_model_len": 4096}, {"id": "other"}]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.bodies.append(body)
        ask = body["messages"][-1]["content"]
        if "!old" in ask and "logprobs" in body:
            return self.refuse(400, "unknown field logprobs")
        if "!gone" in ask:
            return self.refuse(404, "the model has been unloaded")
        if "!full" in ask:
            return self.refuse(503, "no room")
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        self.chunk({"role": "assistant", "content": ""})
        if "chat_template_kwargs" in body:
            self.chunk({"reasoning_content": "let me see"})
        for number, word in enumerate(["one", " [/two]", " 漢字"]):
            self.chunk({"content": word}, self.logprobs(body, word))
            if number == 1 and self.misbehaves(ask):
                return
        self.chunk({}, finish="length" if "!long" in ask else "stop")
        usage = {"prompt_tokens": 9, "completion_tokens": 3}
        self.line(json.dumps({"choices": [], "usage": usage}))
        self.line("[DONE]")

    def misbehaves(self, ask: str) -> bool:
        if "!error" in ask:
            self.line(json.dumps({"error": {"message": "out of [/memory]", "code": 500}}))
        elif "!junk" in ask:
            self.line('{"choices": [')
        elif "!odd" in ask:
            self.line('{"choices": [{"delta": 7}]}')
        elif "!wait" in ask:
            self.server.released.wait(20)
        elif "!cut" not in ask:
            return False
        return True

    def logprobs(self, body: dict, word: str) -> dict:
        if "logprobs" not in body:
            return {}
        top = [{"token": word, "logprob": math.log(0.75)}, {"token": "no", "logprob": -2.0}]
        return {"content": [{"token": word, "logprob": math.log(0.75), "top_logprobs": top}]}

    def chunk(self, delta: dict, logprobs: dict | None = None, finish: str | None = None) -> None:
        choice = {"index": 0, "delta": delta, "logprobs": logprobs, "finish_reason": finish}
        self.line(json.dumps({"choices": [choice]}))

    def line(self, text: str) -> None:
        self.wfile.write(f"data: {text}\n\n".encode())
        self.wfile.flush()

    def refuse(self, status: int, words: str) -> None:
        self.plain(status, {"error": {"message": words}})

    def plain(self, status: int, value: object) -> None:
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, key: str = "") -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.key = key
        self.bodies: list[dict] = []
        self.released = threading.Event()
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"

    def close(self) -> None:
        self.released.set()
        self.shutdown()
        self.server_close()
