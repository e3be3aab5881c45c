import { defineConfig } from 'vite';

export default defineConfig({
  base: './',
  build: { chunkSizeWarningLimit: 9000, modulePreload: false },
  // Each of them holds state of its own: two copies would not know of each other.
  resolve: { dedupe: ['react', 'react-dom', '@grafana/data', '@grafana/ui', '@emotion/react', '@emotion/css'] },
});
