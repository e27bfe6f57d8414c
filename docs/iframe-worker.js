/* Browsers start no Worker from file://. There, the search runs its worker script in a hidden frame instead. */
if (location.protocol === "file:") {
  window.IFrameWorker = class extends EventTarget {
    constructor(url) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.body.appendChild(frame)
      this.window = frame.contentWindow
      this.waiting = []
      this.window.document.open()
      this.window.document.write("<html><body></body></html>")
      this.window.document.close()
      this.window.postMessage = data => this.dispatchEvent(new MessageEvent("message", { data }))
      const script = this.window.document.createElement("script")
      script.src = new URL(url, location.href).href
      script.onload = () => {
        const waiting = this.waiting
        this.waiting = null
        waiting.forEach(data => this.postMessage(data))
      }
      this.window.document.body.appendChild(script)
    }

    postMessage(data) {
      if (this.waiting) this.waiting.push(data)
      else this.window.dispatchEvent(new MessageEvent("message", { data }))
    }

    terminate() {
      this.window.frameElement.remove()
    }
  }
  window.Worker = window.IFrameWorker
}
